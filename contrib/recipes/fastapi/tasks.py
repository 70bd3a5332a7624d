# tasks.py
import os

from bsdq import App

app = App(os.environ.get("BSD_ADDRESS", "127.0.0.1:11300"))


@app.task(tube="mail", ttr=60)
async def welcome(user: int) -> None:
    print("welcome to", user, flush=True)
