# shop/management/commands/worker.py
import sys

from bsdq.worker import Worker
from django.core.management.base import BaseCommand

from shop.tasks import app


class Command(BaseCommand):
    help = "Run the tasks of shop.tasks until SIGTERM."

    def add_arguments(self, parser):
        parser.add_argument("--concurrency", type=int, default=4)
        parser.add_argument("--grace", type=float, default=30)

    def handle(self, *, concurrency, grace, **options):
        sys.exit(Worker(app, concurrency=concurrency, grace=grace).run())
