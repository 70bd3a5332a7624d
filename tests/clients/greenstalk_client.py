"""All that greenstalk can do, as a transcript. Usage: greenstalk_client.py HOST PORT"""

import greenstalk

from transcript import Transcript, address

t = Transcript()
call = t.call

with greenstalk.Client(address()) as c:
    call("using", c.using)
    call("watching", c.watching)
    call("tubes", c.tubes)
    call("use", c.use, "work")
    call("watch", c.watch, "work")
    call("watch again", c.watch, "work")
    call("ignore", c.ignore, "default")
    call("ignore the only one", c.ignore, "work")
    call("use a bad name", c.use, "-bad")
    call("using", c.using)
    call("watching", c.watching)
    call("tubes", c.tubes)

    first = call("put", c.put, "first", is_id=True)
    urgent = call("put urgent", c.put, "urgent", priority=0, is_id=True)
    later = call("put delayed", c.put, "later", delay=1000, ttr=99, is_id=True)
    call("put unicode", c.put, "żółć ☃", priority=2**32 - 1, is_id=True)
    call("put empty", c.put, "", priority=2**31, is_id=True)
    call("put too big", c.put, "x" * 65536)
    call("put the biggest", c.put, "x" * 65535, delay=1000, is_id=True)

    call("peek", c.peek, first)
    call("peek none", c.peek, 10**15)
    call("peek_ready", c.peek_ready)
    call("peek_delayed", c.peek_delayed)
    call("peek_buried", c.peek_buried)
    for job_id in (first, urgent, later):
        call("stats_job", c.stats_job, job_id)
    call("stats_job none", c.stats_job, 10**15)

    job = call("reserve", c.reserve)
    call("touch", c.touch, job)
    call("stats_job", c.stats_job, job)
    call("release", c.release, job, priority=7, delay=0)
    job = call("reserve with timeout", c.reserve, timeout=0)
    call("release later", c.release, job, priority=3, delay=1000)
    call("stats_job", c.stats_job, job)
    call("kick_job", c.kick_job, job)
    job = call("reserve_job", c.reserve_job, later)
    call("bury", c.bury, job, priority=9)
    call("peek_buried", c.peek_buried)
    call("stats_job", c.stats_job, job)
    call("stats_tube", c.stats_tube, "work")
    call("kick", c.kick, 10)
    call("kick the delayed", c.kick, 10)
    call("delete", c.delete, later)
    call("delete again", c.delete, later)
    call("touch not reserved", c.touch, job)

    call("pause_tube", c.pause_tube, "work", 1000)
    call("pause_tube none", c.pause_tube, "none", 1000)
    call("reserve while paused", c.reserve, timeout=0)
    call("stats_tube", c.stats_tube, "work")
    call("pause_tube 0", c.pause_tube, "work", 0)

    while job := call("reserve", c.reserve, timeout=1):
        call("delete", c.delete, job)

    with greenstalk.Client(address(), encoding=None, use="raw", watch=["raw", "work"]) as other:
        call("raw put", other.put, bytes(range(256)), is_id=True)
        call("raw put delayed by one second", other.put, b"soon", delay=1, is_id=True)
        call("raw watching", other.watching)
        job = call("raw reserve", other.reserve)
        soon = call("raw reserve waits", other.reserve, timeout=10)
        call("tubes", c.tubes)
        call("stats_tube", c.stats_tube, "raw")
        call("delete what another has", c.delete, job)
        call("raw delete", other.delete, job)
        call("raw release", other.release, soon)
        call("raw delete of what was released", other.delete, soon)
    t.server_stats(c.stats())
