"""All that pystalk can do, as a transcript. Usage: pystalk_client.py HOST PORT"""

from pystalk import BeanstalkClient

from transcript import Transcript, address

t = Transcript()
call = t.call

c = BeanstalkClient(*address(), auto_decode=True)


def put(what, function, *args, **named):
    """A put, which pystalk answers with a pair: the word and the id."""
    return call(what, lambda: function(*args, **named)[1], is_id=True)


call("ping", c.ping)
call("list_tubes", lambda: sorted(c.list_tubes()))
call("use", c.use, "work")
call("watch", c.watch, "work")
call("watch default", c.watch, "default")
call("watchlist", lambda: sorted(c.watchlist))
call("ignore", c.ignore, "default")
call("watchlist", lambda: sorted(c.watchlist))
call("watch a bad name", c.watch, "-bad")

first = put("put_job", c.put_job, "first")
urgent = put("put_job urgent", c.put_job, b"urgent", pri=0, ttr=99)
later = put("put_job delayed", c.put_job, "later", delay=1000)
put("put_job_into", c.put_job_into, "other", "elsewhere")
with c.using("other") as inserter:
    put("put_job through using", inserter.put_job, "elsewhere too")
put("put_job too big", c.put_job, "x" * 65536)
call("list_tubes", lambda: sorted(c.list_tubes()))

call("peek_ready", c.peek_ready)
call("peek_delayed", c.peek_delayed)
call("peek_buried", c.peek_buried)
for job_id in (first, urgent, later):
    call("stats_job", c.stats_job, job_id)
call("stats_job none", c.stats_job, 10**15)
call("stats_tube", c.stats_tube, "work")
call("stats_tube none", c.stats_tube, "none")

job = call("reserve_job", c.reserve_job, 0)
call("stats_job", c.stats_job, job.job_id)
call("release_job", c.release_job, job.job_id, pri=5)
job = call("reserve_job", c.reserve_job, 0)
call("release_job later", c.release_job, job.job_id, pri=5, delay=1000)
call("kick_job", c.kick_job, job.job_id)
call("kick_job again", c.kick_job, job.job_id)
job = call("reserve_job", c.reserve_job, 0)
call("bury_job", c.bury_job, job.job_id, pri=8)
call("bury_job again", c.bury_job, job.job_id)
call("peek_buried", c.peek_buried)
call("stats_job", c.stats_job, job.job_id)
call("kick_jobs", c.kick_jobs, 10)
call("kick_jobs, the delayed", c.kick_jobs, 10)
call("delete_job", c.delete_job, later)
call("delete_job again", c.delete_job, later)

call("pause_tube", c.pause_tube, "work", 1000)
call("pause_tube none", c.pause_tube, "none", 1000)
call("reserve_job while paused", c.reserve_job, 0)
call("stats_tube", c.stats_tube, "work")
call("unpause_tube", c.unpause_tube, "work")

for job in c.reserve_iter():
    call("reserve_iter", lambda: job)
    call("delete_job", c.delete_job, job.job_id)
call("use", c.use, "other")
for job in c.peek_ready_iter():
    call("peek_ready_iter", lambda: job)
    call("delete_job", c.delete_job, job.job_id)
put("put_job delayed by one second", c.put_job, "soon", delay=1)
call("watch", c.watch, "other")
job = call("reserve_job waits", c.reserve_job, 10)
call("delete_job", c.delete_job, job.job_id)
t.server_stats(c.stats())
call("close", c.close)
call("ping after close", c.ping)
