"""An id belongs to a task: what a caller is told who gives it to another one."""

from __future__ import annotations

import pytest

from penstock import IdConflict, JobGone

SENTENCE = (
    "no job of task 'shop.mail' was stored under the id 'order-7': it belongs to a job of task "
    "'shop.charge'; use ids that name their task, such as 'mail:order-7'"
)

pytestmark = pytest.mark.every_engine


@pytest.fixture
def charge(app):
    @app.task(name="shop.charge")
    def charge(order: int) -> int:
        return order

    return charge


@pytest.fixture
def mail(app):
    @app.task(name="shop.mail")
    def mail(order: int) -> int:
        return order

    return mail


def told(error):
    """What it says and knows."""
    return str(error.value), error.value.job, error.value.task, error.value.owner


FACTS = (SENTENCE, "order-7", "shop.mail", "shop.charge")


def test_the_id_of_another_tasks_job_is_a_conflict(app, charge, mail):
    first = charge.using(id="order-7").enqueue(7)
    with pytest.raises(IdConflict) as caught:
        mail.using(id="order-7").enqueue(7)
    assert told(caught) == FACTS
    assert [job.id for job in app.find().jobs] == [first.id]


async def test_the_awaited_way_is_told_too(charge, mail):
    await charge.using(id="order-7").aenqueue(7)
    with pytest.raises(IdConflict) as caught:
        await mail.using(id="order-7").aenqueue(7)
    assert told(caught) == FACTS
    with pytest.raises(IdConflict):
        await mail.using(id=lambda order: f"order-{order}").aenqueue_many([(7,)])


async def test_a_client_of_the_callers_own_loop_is_told_too(app, charge, mail):
    async with app:
        await charge.using(id="order-7").aenqueue(7)
        with pytest.raises(IdConflict) as caught:
            await mail.using(id="order-7").aenqueue(7)
    assert told(caught) == FACTS


async def test_by_name_it_is_the_same(app):
    app.enqueue("shop.charge", {"order": 7}, id="order-7")
    with pytest.raises(IdConflict) as caught:
        app.enqueue("shop.mail", {"order": 7}, id="order-7")
    assert told(caught) == FACTS
    with pytest.raises(IdConflict):
        await app.aenqueue("shop.mail", {"order": 7}, id="order-7")


def test_it_is_a_conflict_also_when_the_first_job_is_purged(app, charge, mail):
    charge.using(id="order-7").enqueue(7)
    assert app.purge() == 1
    with pytest.raises(IdConflict) as caught:
        mail.using(id="order-7").enqueue(7)
    assert told(caught) == FACTS
    with pytest.raises(JobGone):
        app.job("order-7").status()


def test_the_same_task_and_id_is_a_no_op_whatever_the_arguments(mail):
    first = mail.using(id="order-7").enqueue(7)
    again = mail.using(id="order-7", queue="other").enqueue(8)
    assert (first.created, first.because) == (True, None)
    assert (again.id, again.created, again.because) == ("order-7", False, "id")
    assert again.status().arguments == {"order": 7}


def test_of_many_jobs_all_others_are_stored_and_the_error_has_their_ids(app, charge, mail):
    charge.using(id="order-7").enqueue(7)
    known = mail.using(id="order-5").enqueue(5)
    each = mail.using(id=lambda order: f"order-{order}" if order else None)
    with pytest.raises(IdConflict) as caught:
        each.enqueue_many([(5,), (6,), (7,), (0,), (8,)])
    assert told(caught) == FACTS
    a, b, conflict, own, c = caught.value.ids
    assert (a, b, conflict, c) == (known.id, "order-6", None, "order-8")
    assert app.job(own).status().arguments == {"order": 0}
    assert caught.value.__notes__ == [
        "not stored: item 2 of 5, counted from 0; all others are, or were there already, and the "
        "error has their ids"
    ]
    assert len(app.find().jobs) == 5


def test_of_many_jobs_by_name_the_first_of_an_id_has_it(app):
    calls = [("shop.charge", {"order": 7}, {"id": "order-7"})]
    calls += [("shop.mail", {"order": 7}, {"id": "order-7"}), ("shop.mail", {"order": 8}, {})]
    with pytest.raises(IdConflict) as caught:
        app.enqueue_many(calls)
    assert told(caught) == FACTS
    assert app.job("order-7").status().task == "shop.charge"
    assert caught.value.ids[:2] == ("order-7", None)


def test_two_tasks_may_have_the_same_unique_key(app, charge, mail):
    first = charge.using(unique="order-7").enqueue(7)
    second = mail.using(unique="order-7").enqueue(7)
    again = mail.using(unique="order-7").enqueue(7)
    assert (first.created, second.created) == (True, True)
    assert (again.id, again.because) == (second.id, "unique")
    assert second.status().unique == "order-7"


def test_a_unique_key_may_be_one_for_all_tasks(charge, mail):
    first = charge.using(unique="order-7", unique_scope="app").enqueue(7)
    second = mail.using(unique="order-7", unique_scope="app").enqueue(7)
    assert (second.id, second.created, second.because) == (first.id, False, "unique")
