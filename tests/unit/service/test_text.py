"""The text shown for an error, whatever characters a model's names contain."""

from __future__ import annotations

from tilewright.service.show.text import LIMIT, one_sentence, with_reason


def test_a_sentence_is_one_printable_line() -> None:
    assert one_sentence("node 'a\n b': \x1b[31mred\x07") == r"node 'a b': \x1b[31mred\x07"
    assert one_sentence("узел '節點' 😀") == "узел '節點' 😀"
    assert one_sentence("a\u202eb") == r"a\u202eb"


def test_a_long_sentence_keeps_its_ends() -> None:
    text = one_sentence("node '" + "deep/" * 10**5 + "': not implemented")
    assert len(text) <= LIMIT
    assert text.startswith("node 'deep/deep/")
    assert text.endswith("/': not implemented")


def test_a_reason_that_nobody_gave_is_left_out() -> None:
    assert with_reason("cancelled", "out of\ntime") == "cancelled: out of time"
    assert with_reason("cancelled", "") == with_reason("cancelled", None) == "cancelled"
