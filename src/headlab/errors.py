"""The one kind of error that is meant for the person at the terminal."""


class HeadlabError(Exception):
    """Something the user can mend: one line that names the value, the place and the remedy.

    Commands print it without a traceback and exit with status 1.
    """
