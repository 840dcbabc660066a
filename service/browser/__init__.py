"""The measurement worker in JavaScript.

It runs in a browser, on a page of the service, or in Node.
"""
