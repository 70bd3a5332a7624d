"""A worker as many are: it takes a job, does it, deletes it; if that fails it releases it. What it
gets and what it has done it says a line at a time. Usage: worker.py HOST PORT"""

import os
import sys

import greenstalk


def work(body):
    kind = body.split()[0]
    if kind == "crash":
        os._exit(1)
    if kind == "release":
        raise ValueError(body)


with greenstalk.Client((sys.argv[1], int(sys.argv[2])), watch="work") as client:
    while True:
        job = client.reserve()
        print("got", job.id, job.body, flush=True)
        try:
            work(job.body)
        except ValueError:
            client.release(job)
        else:
            client.delete(job)
            print("done", job.id, job.body, flush=True)
