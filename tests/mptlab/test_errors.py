"""Messages of the client's errors, and their attributes for programs."""

from mptlab.errors import NoAnswer, NotSucceeded, Refused


def test_a_refusal_is_the_sentence_of_its_document() -> None:
    errors = [{"pointer": "/seeds", "detail": "a list"}]
    document = {"detail": "why", "title": "what", "reason": "wrong_state", "errors": errors}
    found = Refused(document, 409)
    assert str(found) == "why"
    assert (found.reason, found.errors, found.status) == ("wrong_state", errors, 409)
    assert found.document is document
    assert str(Refused({"title": "what"})) == "what"
    assert str(Refused({"x": 1})) == "{'x': 1}"
    assert (Refused({}).reason, Refused({}).errors, Refused({}).status) == (None, [], None)
    away = {status: Refused({}, status).is_away for status in (500, 501, 502, 503, 504, 505)}
    assert [status for status, is_away in away.items() if is_away] == [502, 503, 504]


def test_a_service_that_does_not_answer_is_named_with_what_to_do() -> None:
    found = NoAnswer("http://x", "refused")
    assert found.url == "http://x"
    assert str(found) == (
        "http://x does not answer (refused): `mpt serve` starts a service on this machine; "
        "MPT_URL or `mpt login` names another"
    )


def test_an_unsuccessful_experiment_is_named_with_its_failure() -> None:
    failure = {"kind": "invalid", "message": "why"}
    one = {"id": "ab", "name": "mine", "status": "failed", "failure": failure}
    assert str(NotSucceeded(one)) == "ab (mine) failed: invalid: why"
    assert NotSucceeded(one).document is one
    assert str(NotSucceeded({"id": "ab", "status": "cancelled"})) == "ab cancelled"
    sweep = {"id": "s", "points": 9, "counts": {"failed": 2, "cancelled": 1, "succeeded": 6}}
    assert str(NotSucceeded(sweep)) == "s: of 9 points, 2 failed and 1 cancelled"
    sweep["counts"] = {"failed": 0, "cancelled": 3}
    assert str(NotSucceeded(sweep)) == "s: of 9 points, 3 cancelled"
