# main.py
from bsdq import ConnectionLost, Refused, Timeout
from fastapi import FastAPI, HTTPException

from tasks import welcome

web = FastAPI()


@web.post("/users/{user}/welcome", status_code=202)
async def post_welcome(user: int) -> dict[str, int]:
    try:
        # The key makes one job of two requests, as long as the first one is not done.
        job = await welcome.options(key=f"welcome-{user}").aput(user)
    except (ConnectionLost, Refused, Timeout) as error:
        raise HTTPException(503, "try again") from error
    return {"job": job.id}
