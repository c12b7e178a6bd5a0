"""The ``moegen`` command. Importing this package imports nothing heavy; each verb imports what it needs when it
runs."""


def main() -> None:
    """Entry point of the ``moegen`` script."""
    from moegen.cli.app import app

    app(prog_name="moegen")
