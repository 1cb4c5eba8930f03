"""What surrounds the verbs: words that are taken apart, pages of help, completion."""
