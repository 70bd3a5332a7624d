# shop/tasks.py
import functools

from bsdq import App
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import close_old_connections, transaction

app = App(settings.BSD_ADDRESS)


def with_database(function):
    """A worker lives long: a connection to the database that has gone is not used again."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return run


@app.task(tube="mail", ttr=60)
@with_database
def welcome(user_id: int) -> None:
    user = get_user_model().objects.get(pk=user_id)
    user.email_user("Welcome", f"Hello {user.get_username()}")


def welcome_when_committed(user) -> None:
    """Call this in a view: a worker never sees a user who is not in the database."""
    transaction.on_commit(lambda: welcome.put(user.pk))
