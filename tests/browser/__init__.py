"""The same tests in the Python of a browser, and a chapter in a browser."""
