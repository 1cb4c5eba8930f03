"""``report.html`` and ``clove watch``: one page about runs that needs no network."""
