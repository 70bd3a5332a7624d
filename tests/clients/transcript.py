"""What the Python scripts share: calls that are written down with what they return or raise.

Ids become their order of appearance. Of statistics, what names the process or the machine is left
out, and what depends on the clock is shown as its type.
"""

import sys
from zlib import crc32

CLOCKED = {"age", "time-left", "pause-time-left"}
COUNTED = ("current-", "cmd-", "total-", "job-timeouts", "max-job-size", "draining")


class Transcript:
    def __init__(self):
        self.ids = []
        self.lines = 0

    def name(self, job_id):
        """The order of appearance of an id."""
        if job_id not in self.ids:
            self.ids.append(job_id)
        return "#%d" % (self.ids.index(job_id) + 1)

    def show(self, value):
        """A value without what differs from run to run."""
        if hasattr(value, "body"):
            return self.show_job(value.id, value.body)
        if hasattr(value, "job_data"):
            return self.show_job(value.job_id, value.job_data)
        if isinstance(value, dict):
            return "{%s}" % ", ".join(self.show_entry(*entry) for entry in sorted(value.items()))
        return repr(value)

    def show_job(self, job_id, body):
        raw = body.encode() if isinstance(body, str) else body
        shown = repr(body) if len(raw) < 300 else "%d bytes, CRC %x" % (len(raw), crc32(raw))
        return "job %s %s" % (self.name(job_id), shown)

    def show_entry(self, key, value):
        if key in CLOCKED:
            return "%s: %s" % (key, type(value).__name__)
        return "%s: %s" % (key, self.name(value) if key == "id" else repr(value))

    def call(self, what, function, *args, is_id=False, **named):
        """Call, write down the outcome, and return what the call returned."""
        try:
            value = function(*args, **named)
        except Exception as error:
            message = getattr(error, "message", "")
            print("%s raised %s %s" % (what, type(error).__name__, message or error.args))
            return None
        print("%s -> %s" % (what, self.name(value) if is_id else self.show(value)))
        return value

    def server_stats(self, stats):
        """The counters of `stats`, one a line."""
        for key in sorted(key for key in stats if key.startswith(COUNTED)):
            print("stats %s: %r" % (key, stats[key]))


def address():
    """The server's host and port, as the command line gives them."""
    return sys.argv[1], int(sys.argv[2])
