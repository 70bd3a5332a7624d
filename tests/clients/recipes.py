"""The recipes of contrib/recipes, each with the real program or library that it is for.

Those for frameworks put two jobs, of which one cannot be done, and work. Those for operators are
read by the program that they are for, and the server is run with the flags that they give it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/python/tests"))

import harness  # noqa: E402

RECIPES = ROOT / "contrib/recipes"
HOST = harness.HOST
CLIENTS = ROOT / "tests/clients"
PATIENCE = 120
#: A job that fails three times is set aside.
POLICY = {"delivery-limit": 3, "dead-letter": "mail-dead"}


def need(program: str) -> str:
    """The program, or the end of the test."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    return found or harness.skip(f"{program} is not installed")


def of_venv(program: str) -> str:
    """A program of the environment that runs this."""
    path = Path(sys.prefix, "bin", program)
    return str(path) if path.exists() else harness.skip(f"{path} is missing")


def run(*words: str, **options: Any) -> str:
    """Runs it to its end, which is to be a success, and returns what it said."""
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError(f"{words} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def environment(**more: str) -> Dict[str, str]:
    """The environment of a program that imports the client of this repository."""
    paths = {"PYTHONPATH": str(harness.SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **paths, **more}


class Running:
    """A program that runs until it is told to end."""

    def __init__(self, *words: str, **options: Any) -> None:
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, **options
        )

    def said(self) -> str:
        """What it has said."""
        return Path(self.log.name).read_text()

    def stop(self) -> str:
        """Tells it to end, waits for that, and returns what it has said."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        return self.said()

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def status(port: int, path: str) -> int:
    """The status that a server answers over HTTP, or 0 if none is there."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


class Recipe(unittest.TestCase):
    """A test beside servers and programs that end with it."""

    def server(self, *args: str, **options: Any) -> harness.Server:
        """A server that serves."""
        server = harness.Server(args=args, **options)
        self.addCleanup(server.end)
        return server

    def running(self, *words: str, **options: Any) -> Running:
        """A program that runs."""
        program = Running(*words, **options)
        self.addCleanup(program.end)
        return program

    def folder(self) -> Path:
        """An empty folder."""
        path = tempfile.mkdtemp(prefix="bsd-recipe-")
        self.addCleanup(shutil.rmtree, path, True)
        return Path(path)

    def queue(self) -> harness.Server:
        """A server whose tube `mail` has a policy."""
        server = self.server()
        with server.client() as client:
            client.set_policy("mail", POLICY)
        return server

    def works_off(self, server: harness.Server, worker: Running, tube: str = "mail") -> None:
        """The worker does one job and fails at the other, which is set aside."""

        def is_done() -> bool:
            with server.client() as client:
                counts = (client.stats_tube(it) for it in (tube, "mail-dead"))
                mail, dead = (dict(it) for it in counts)
                busy = sum(mail[f"current-jobs-{it}"] for it in ("ready", "reserved", "delayed"))
                return busy == 0 and dead["current-jobs-ready"] == 1

        with server.client() as client:
            # A tube without jobs and clients is none.
            client.use(tube)
            client.watch("mail-dead")
            try:
                harness.until("both jobs have left the tube", is_done)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{worker.said()}") from None
        said = worker.stop()
        self.assertEqual(said.count("sent to ann@example.org"), 1, said)
        self.assertEqual(said.count("nowhere is no address"), 3, said)


class Laravel(Recipe):
    def test(self) -> None:
        need("php")
        parts = ("Queue", "Events", "Bus")
        script = "".join(f"require 'Illuminate/{it}/autoload.php';" for it in parts)
        if subprocess.run(["php", "-r", script], capture_output=True).returncode:
            harness.skip("there is no Illuminate for PHP")
        server = self.server()
        words = ["php", str(CLIENTS / "laravel.php"), HOST, str(server.port)]
        said = run(*words).splitlines()
        raised = "raised nowhere is no address"
        expected = ["failed: nowhere is no address", *[raised] * 3, "sent to ann@example.org"]
        self.assertEqual(sorted(said), expected)


class Symfony(Recipe):
    def test(self) -> None:
        need("php")
        script = "require 'Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';"
        if subprocess.run(["php", "-r", script], capture_output=True).returncode:
            harness.skip("there is no Symfony Messenger for PHP")
        server = self.server()
        words = ["php", str(CLIENTS / "symfony.php"), HOST, str(server.port)]
        said = run(*words).splitlines()
        self.assertEqual(said[0], "sent to ann@example.org")
        self.assertEqual(len([it for it in said if it.startswith("raised ")]), 8)
        self.assertEqual(said[-2:], ["failed after 8 attempts", "set aside nowhere"])


class Django(Recipe):
    def test(self) -> None:
        admin = of_venv("django-admin")
        server = self.server()
        site = self.folder()
        env = environment(BSD_ADDRESS=server.address)

        def manage(*words: str) -> str:
            return run(sys.executable, "manage.py", *words, cwd=site, env=env)

        run(admin, "startproject", "site1", ".", cwd=site)
        manage("startapp", "shop")
        commands = site / "shop/management/commands"
        commands.mkdir(parents=True)
        shutil.copy(RECIPES / "django/tasks.py", site / "shop")
        shutil.copy(RECIPES / "django/worker.py", commands)
        with open(site / "site1/settings.py", "a") as settings:
            settings.write(f"INSTALLED_APPS += ['shop']\nBSD_ADDRESS = '{server.address}'\n")
            settings.write("EMAIL_BACKEND = 'django.core.mail.backends.filebased.EmailBackend'\n")
            settings.write(f"EMAIL_FILE_PATH = '{site / 'sent'}'\n")
        manage("migrate", "-v0")
        view = (
            "from django.contrib.auth.models import User\n"
            "from django.db import transaction\n"
            "from shop.tasks import welcome_when_committed\n"
            "with transaction.atomic():\n"
            "    welcome_when_committed(User.objects.create_user('ann', 'ann@example.org'))\n"
        )
        manage("shell", "-c", view)
        with server.client() as client:
            self.assertEqual(client.stats_tube("mail")["current-jobs-ready"], 1)
        words = [sys.executable, "manage.py", "worker", "--concurrency", "1"]
        worker = self.running(*words, cwd=site, env=env)
        harness.until("the letter is written", lambda: list(site.glob("sent/*.log")))
        said = worker.stop()
        self.assertEqual(worker.process.returncode, 0, said)
        (letter,) = site.glob("sent/*.log")
        self.assertIn("To: ann@example.org", letter.read_text())
        self.assertIn("Hello ann", letter.read_text())


class FastApi(Recipe):
    def test(self) -> None:
        uvicorn = of_venv("uvicorn")
        server = self.server()
        port = harness.free_port()
        env = environment(BSD_ADDRESS=server.address)
        folder = RECIPES / "fastapi"
        words = ["main:web", "--host", HOST, "--port", str(port)]
        web = self.running(uvicorn, *words, cwd=folder, env=env)
        harness.until("it serves", lambda: status(port, "/openapi.json") == 200)

        def post() -> Any:
            url = f"http://{HOST}:{port}/users/17/welcome"
            with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as answer:
                self.assertEqual(answer.status, 202)
                return json.load(answer)

        first = post()
        self.assertEqual(post(), first, "two requests are one job")
        worker = [sys.executable, "-m", "bsdq", "worker", "tasks:app"]
        worker = self.running(*worker, cwd=folder, env=env)
        harness.until("the job is done", lambda: "welcome to 17" in worker.said())
        said = worker.stop()
        self.assertEqual(said.count("welcome to 17"), 1, said)
        self.assertEqual(worker.process.returncode, 0, said)
        web.stop()


class Backburner(Recipe):
    def test(self) -> None:
        ruby = need("ruby")
        folder = RECIPES / "backburner"
        for name in ("jobs.rb", "worker.rb"):
            self.assertEqual(run(ruby, "-wc", name, cwd=folder).strip(), "Syntax OK")
        if subprocess.run([ruby, "-e", "require 'backburner'"], capture_output=True).returncode:
            print("only the syntax was looked at: there is no gem backburner")
            return
        server = self.server()
        with server.client() as client:
            client.set_policy("shop.mail", {**POLICY, "delivery-limit": 1})
        env = {**os.environ, "BEANSTALK_URL": f"beanstalk://{server.address}"}
        put = "%w[ann@example.org nowhere].each { |to| Backburner.enqueue SendMail, to }"
        run(ruby, "-r./jobs", "-e", put, cwd=folder, env=env)
        worker = self.running(ruby, "worker.rb", cwd=folder, env=env)

        def is_tried() -> bool:
            said = worker.said()
            return "sent to ann@example.org" in said and "nowhere is no address" in said

        harness.until("both were tried", is_tried)
        worker.stop()


class Jackd(Recipe):
    def test(self) -> None:
        node = need("node")
        modules = os.environ.get("BSD_NODE_MODULES", str(ROOT / "target/node/node_modules"))
        if not Path(modules, "jackd").is_dir():
            harness.skip(f"there is no jackd in {modules}")
        server = self.queue()
        env = {**os.environ, "NODE_PATH": modules, "BSD_HOST": HOST, "BSD_PORT": str(server.port)}
        script = str(RECIPES / "jackd/worker.js")
        run(node, script, "put", "ann@example.org", "nowhere", env=env)
        worker = self.running(node, script, env=env)
        self.works_off(server, worker)
        self.assertEqual(worker.process.returncode, 0, worker.said())


class Go(Recipe):
    """The compiler is larger than all other peers, so a parser of Go reads the recipe."""

    def test(self) -> None:
        try:
            import tree_sitter
            import tree_sitter_go
        except ImportError:
            harness.skip("there is no tree-sitter-go")
        source = (RECIPES / "go/main.go").read_bytes()
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_go.language()))
        self.assertFalse(parser.parse(source).root_node.has_error)
        broken = source.replace(b"func put(", b"func put[[")
        self.assertTrue(parser.parse(broken).root_node.has_error)


class Compose(Recipe):
    def test(self) -> None:
        compose = need("docker-compose")
        said = run(compose, "-f", str(RECIPES / "compose/compose.yaml"), "config")
        import yaml

        queue = yaml.safe_load(said)["services"]["queue"]
        server = self.server(*queue["command"])
        test = queue["healthcheck"]["test"]
        self.assertEqual(test[:2], ["CMD", "bsd-ctl"])
        env = {**os.environ, "BSD_CTL_ADDRESS": server.address}
        run(ctl(), *test[2:], env=env)
        server.kill()
        self.assertNotEqual(subprocess.run([ctl(), *test[2:]], env=env).returncode, 0)


def ctl() -> str:
    """bsd-ctl of the same build as the server."""
    found = os.environ.get("BSD_CTL_UNDER_TEST") or Path(harness.bsd_server()).with_name("bsd-ctl")
    return str(found) if Path(found).exists() else harness.skip(f"{found} is missing")


class Cluster:
    """Three members with HTTP, and a token file if one is asked for."""

    def __init__(self, test: Recipe, options: Optional[List[List[str]]] = None) -> None:
        self.members = []
        self.http = [harness.free_port() for _ in range(3)]
        self.peers = [f"{HOST}:{harness.free_port()}" for _ in range(3)]
        for number in range(3):
            more = [] if options is None else options[number]
            begin = ["--cluster-join", self.peers[0]] if number else ["--cluster-init"]
            args = ["-b", str(test.folder() / "log"), "--http", f"{HOST}:{self.http[number]}"]
            args += ["--cluster", self.peers[number], *(more or begin)]
            self.members.append(test.server(*args, is_member=True))
        harness.until("three members vote", self.is_whole)

    def is_whole(self) -> bool:
        """Whether all members vote."""
        for port in self.http:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/cluster") as answer:
                    members = json.load(answer).get("members", [])
            except OSError:
                continue
            if sum(it["votes"] for it in members) == 3:
                return True
        return False

    def leader(self) -> Optional[int]:
        """Which one leads."""
        leads = [number for number in range(3) if status(self.http[number], "/leader") == 200]
        return leads[0] if len(leads) == 1 else None


class Haproxy(Recipe):
    def test(self) -> None:
        haproxy = need("haproxy")
        run(haproxy, "-c", "-q", "-f", str(RECIPES / "haproxy/haproxy.cfg"))
        cluster = Cluster(self)
        port = harness.free_port()
        text = (RECIPES / "haproxy/haproxy.cfg").read_text()
        text = text.replace("127.0.0.1:11300", f"{HOST}:{port}").replace("port 11380 ", "")
        for number, member in enumerate(cluster.members):
            here = f"{HOST}:{member.port} check port {cluster.http[number]}"
            there = f"10.0.0.{number + 1}:11300 check"
            self.assertIn(there, text)
            text = text.replace(there, here)
        config = self.folder() / "haproxy.cfg"
        config.write_text(text)
        proxy = self.running(haproxy, "-db", "-f", str(config))

        def client() -> harness.bsdq.Client:
            return harness.bsdq.Client(f"{HOST}:{port}", retry_for=harness.PATIENCE)

        with client() as it:
            job = it.put("before")
        leader = cluster.leader()
        assert leader is not None
        cluster.members[leader].kill()
        with client() as it:
            reserved = it.reserve(timeout=int(harness.PATIENCE))
            self.assertEqual((reserved.id, reserved.text()), (job, "before"), proxy.said())
            it.delete(reserved)
        new = harness.until("another one leads", lambda: cluster.leader() not in (None, leader))
        self.assertTrue(new)


class Keepalived(Recipe):
    def test(self) -> None:
        keepalived, curl = need("keepalived"), need("curl")
        text = (RECIPES / "keepalived/keepalived.conf").read_text()
        config = self.folder() / "keepalived.conf"
        # Its interface may not be here, and the only one that surely is cannot be used.
        text = text.replace("eth0", "lo")
        config.write_text(text)
        said = self.check(keepalived, config).splitlines()
        self.assertEqual([it for it in said if "cannot use a loopback interface" not in it], [])
        config.write_text(text.replace("weight", "wieght"))
        self.assertIn("wieght", self.check(keepalived, config))
        (script,) = re.findall(r'script "(.*)"', text)
        self.assertEqual(script.split()[0], "/usr/bin/curl")
        cluster = Cluster(self)
        leader = cluster.leader()
        for number, port in enumerate(cluster.http):
            words = [curl, *script.replace("127.0.0.1:11380", f"{HOST}:{port}").split()[1:]]
            code = subprocess.run(words).returncode
            self.assertEqual(code == 0, number == leader, f"{number}: {code}")

    def check(self, keepalived: str, config: Path) -> str:
        """What it says about a configuration."""
        log = config.with_suffix(".log")
        log.write_text("")
        subprocess.run([keepalived, f"--config-test={log}", "-f", str(config)], timeout=PATIENCE)
        return log.read_text()


class Systemd(Recipe):
    def test(self) -> None:
        analyze = need("systemd-analyze")
        folder = self.folder()
        unit = (ROOT / "packaging/systemd/bsd.service").read_text()
        drop_in = (RECIPES / "systemd/override.conf").read_text()
        # What is verified is to exist.
        server = str(Path(harness.bsd_server()).resolve())
        here = lambda it: it.replace("/usr/bin/bsd-server", server)  # noqa: E731
        (folder / "bsd.service").write_text(here(unit).replace("=bsd\n", "=root\n"))
        (folder / "bsd.service.d").mkdir()
        override = folder / "bsd.service.d/override.conf"
        broken = drop_in.replace("MemoryMax", "MemoryMaxx")
        for text, is_right in ((drop_in, True), (broken, False)):
            override.write_text(here(text))
            words = [analyze, "verify", "--man=no", str(folder / "bsd.service")]
            done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
            about = [it for it in done.stderr.splitlines() if "bsd.service" in it]
            self.assertEqual(about == [], is_right, done.stderr)


class Supervisor(Recipe):
    def test(self) -> None:
        supervisord, supervisorctl = of_venv("supervisord"), of_venv("supervisorctl")
        folder = self.folder()
        port = harness.free_port()
        text = (RECIPES / "supervisor/bsd.conf").read_text()
        (folder / "tasks.py").write_text((RECIPES / "fastapi/tasks.py").read_text())
        for there, here in (
            (
                "/usr/bin/bsd-server -b /var/lib/bsd/data",
                f"{harness.bsd_server()} -b {folder}/data -l {HOST} -p {port} --http off",
            ),
            ("user=bsd\n", ""),
            ("/srv/shop/venv/bin/python", sys.executable),
            ("directory=/srv/shop", f"directory={folder}"),
            ("/var/log/supervisor", str(folder)),
        ):
            self.assertIn(there, text)
            text = text.replace(there, here)
        config = folder / "supervisord.conf"
        config.write_text(
            f"[supervisord]\nnodaemon=true\nlogfile=/dev/null\nlogfile_maxbytes=0\n"
            f"pidfile={folder}/pid\nidentifier=recipe\n[unix_http_server]\nfile={folder}/socket\n"
            "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory="
            "supervisor.rpcinterface:make_main_rpcinterface\n"
            f"[supervisorctl]\nserverurl=unix://{folder}/socket\n{text}"
        )
        env = environment(BSD_ADDRESS=f"{HOST}:{port}")
        everything = self.running(supervisord, "-c", str(config), env=env)
        with harness.bsdq.Client(f"{HOST}:{port}", retry_for=harness.PATIENCE) as client:
            client.use("mail")
            client.put('{"task": "tasks.welcome", "args": {"user": 17}}')
            log = folder / "mail.log"
            harness.until(
                "the job is done", lambda: log.exists() and "welcome to 17" in log.read_text()
            )
            pid = client.stats()["pid"]
            os.kill(pid, signal.SIGKILL)
            harness.until("it is started again", lambda: client.stats()["pid"] != pid)
        run(supervisorctl, "-c", str(config), "stop", "mail", "bsd")
        self.assertIn("the worker ends", log.read_text())
        everything.stop()


class Ansible(Recipe):
    def test(self) -> None:
        playbook = of_venv("ansible-playbook")
        folder = self.folder()
        more = {
            "server_package": "bsd-server.deb",
            "bsd_defaults": str(folder / "bsd"),
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
        }
        words = [playbook, "-i", "localhost,", "-c", "local", "-e", json.dumps(more)]
        words.append(str(RECIPES / "ansible/bsd.yml"))
        env = {**os.environ, "ANSIBLE_HOME": str(folder), "ANSIBLE_LOCALHOST_WARNING": "0"}
        run(*words, "--syntax-check", env=env)
        # The others change the machine.
        run(*words, "--tags", "flags", "-e", "ansible_service_mgr=none", env=env, cwd=folder)
        flags = dict(
            line.split("=", 1)
            for line in (folder / "bsd").read_text().splitlines()
            if not line.startswith("#")
        )
        self.assertEqual(flags["BEANSTALKD_LISTEN_ADDR"], "127.0.0.1")
        self.server(*flags["BSD_OPTIONS"].split())


class Kubernetes(Recipe):
    def test(self) -> None:
        validate = of_venv("kubernetes-validate")
        manifest = RECIPES / "kubernetes/bsd.yaml"
        run(validate, "--strict", "-k", "1.31", str(manifest))
        import yaml

        found = list(yaml.safe_load_all(manifest.read_text()))
        (stateful,) = (it for it in found if it["kind"] == "StatefulSet")
        template = stateful["spec"]["template"]
        services = [it for it in found if it["kind"] == "Service" and "clusterIP" in it["spec"]]
        self.assertEqual(len(services), stateful["spec"]["replicas"])
        for number, service in enumerate(services):
            pod = f"{stateful['metadata']['name']}-{number}"
            selector = {"statefulset.kubernetes.io/pod-name": pod}
            self.assertEqual(service["spec"]["selector"], selector)
            self.assertEqual(service["spec"]["clusterIP"], f"10.96.200.1{number}")
        (budget,) = (it for it in found if it["kind"] == "PodDisruptionBudget")
        labels = template["metadata"]["labels"]
        self.assertEqual(budget["spec"]["selector"]["matchLabels"], labels)
        (container,) = template["spec"]["containers"]
        self.assert_serves(container)

    def assert_serves(self, container: Any) -> None:
        """The flags make a cluster of three when one begins it, and the probes say so."""
        http = [harness.free_port() for _ in range(3)]
        peers = [f"{HOST}:{harness.free_port()}" for _ in range(3)]
        members = []
        for number in range(3):
            args = []
            for word in container["args"]:
                flag, value = word.split("=", 1)
                if flag == "--cluster-client":
                    # The address of the listener is what others reach here.
                    continue
                if flag in ("--http-tokens", "--cluster-cert", "--cluster-key", "--cluster-ca"):
                    # Certificates and tokens are other tests' matter.
                    self.assertRegex(value, "^/etc/bsd/")
                    continue
                if flag == "--http":
                    value = f"{HOST}:{http[number]}"
                value = value.replace("$(POD_IP)", "10.96.200.1$(INDEX)")
                value = value.replace("$(INDEX)", str(number))
                for it, peer in enumerate(peers):
                    value = value.replace(f"10.96.200.1{it}:12300", peer)
                args.append(f"{flag}={value}")
            self.assertEqual(len(args), 4, args)
            log = str(self.folder() / "log")
            port = str(harness.free_port())
            words = [harness.bsd_server(), "-b", log, "-l", HOST, "-p", port]
            members.append(self.running(*words, *args))
        names = ("startup", "liveness", "readiness")
        probes = {it: container[f"{it}Probe"]["httpGet"] for it in names}
        self.assertEqual({it["port"] for it in probes.values()}, {"http"})
        for port in http:
            live = probes["liveness"]["path"]
            harness.until("it lives", lambda: status(port, live) == 200)
            self.assertEqual(status(port, probes["startup"]["path"]), 200)
            self.assertEqual(status(port, probes["readiness"]["path"]), 503, "there is no leader")
        run(ctl(), "cluster", "init", env={**os.environ, "BSD_CTL_HTTP": f"{HOST}:{http[0]}"})
        for port in http:
            ready = probes["readiness"]["path"]
            try:
                harness.until("it is ready", lambda: status(port, ready) == 200)
            except AssertionError as error:
                said = [str(error), *(it.said() for it in members)]
                raise AssertionError("\n".join(said)) from None


if __name__ == "__main__":
    unittest.main()
