"""A measurement worker in JavaScript: a page of the api, and the same in Node."""
