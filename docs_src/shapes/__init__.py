"""One story, told in every shape: three questions; the second needs the first answer."""
