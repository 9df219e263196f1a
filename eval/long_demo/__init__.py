"""The long demonstration: sheets of handwritten digits whose judging takes a chain of dependent steps."""
