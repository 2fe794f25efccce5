"""What happened, as frozen records, and the bus that carries them to subscribers.

Only ``engines.observed`` publishes; engines, workers and the leader know nothing of it.
"""
