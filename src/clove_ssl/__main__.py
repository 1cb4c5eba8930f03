"""``python -m clove_ssl``, the form that ``torchrun`` starts."""

from clove_ssl.cli import entry

if __name__ == "__main__":
    entry()
