"""Carriers of task runs: engines that bring ready tasks to workers. Nothing is imported early."""

from antiphon.tasks.queues.url import open_carrier as open_carrier
