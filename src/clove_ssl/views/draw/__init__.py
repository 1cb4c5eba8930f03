"""Parameters before pixels: everything random about views, as plain numbers."""
