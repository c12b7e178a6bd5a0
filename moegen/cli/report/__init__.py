"""``moegen report``: one self-contained HTML file from a tuning database."""
