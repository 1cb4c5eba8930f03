"""One config per method; each builds its method when asked, importing torch only then."""
