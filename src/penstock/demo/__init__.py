"""``penstock demo``: the background jobs of a small shop, live, on an embedded SQLite store.

Mails, pictures with progress, a payment service that fails now and then, an order that cannot be
shipped, an invoice that takes its process down, and a reminder that waits for its time; run by two
worker processes under a supervisor. ``shop`` is the application, as any user would write it.
"""
