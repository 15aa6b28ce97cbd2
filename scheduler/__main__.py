"""The program `scheduler`, also as `python -m scheduler`, from its first moment on."""

import sys

INTERRUPTED = 130  # as shells tell of who was ended by Ctrl-C


def main() -> None:
    """Run the command line, which takes a moment to be loaded."""
    try:
        from scheduler.cli.commands import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
