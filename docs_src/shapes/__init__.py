"""One story, told once in every shape: three questions, of which the second needs the first answer."""
