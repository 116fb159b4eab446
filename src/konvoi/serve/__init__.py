"""Translation and pictures over HTTP, with a page."""
