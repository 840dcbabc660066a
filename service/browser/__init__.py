"""The measurement worker in JavaScript, which runs on a page of the API or in Node."""
