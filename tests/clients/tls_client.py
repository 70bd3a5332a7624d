"""greenstalk over TLS: 1,000 jobs are put, reserved and deleted.

greenstalk opens its own connection; here it is given one that speaks TLS. Arguments: the port, and
the certificate of the authority that the server's certificate must be of.
"""

import socket
import ssl
import sys

import greenstalk

port, authority = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=authority)
connect = socket.create_connection


def connect_tls(*args, **kwargs):
    return context.wrap_socket(connect(*args, **kwargs), server_hostname="localhost")


socket.create_connection = connect_tls
with greenstalk.Client(("127.0.0.1", port)) as client:
    for number in range(1000):
        client.put(f"{number} " + "x" * (number * 60))
    for number in range(1000):
        job = client.reserve(timeout=0)
        assert job.body == f"{number} " + "x" * (number * 60), number
        client.delete(job)
print("1000 jobs")
