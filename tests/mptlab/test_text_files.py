"""Files of lines and of sequences, read by commands."""

from pathlib import Path

import pytest

from mptlab.commands.texts import sequence_of


@pytest.mark.parametrize(
    ("content", "sequence", "notes"),
    [
        (b"\xef\xbb\xbf>sp|P1| a - b *\r\nMKTA\r\n\r\nYIAK\r\n", "MKTAYIAK", []),
        (b"MKTA\nYIAK", "MKTAYIAK", []),
        (b">a\nMKTA\nYIAK*\n", "MKTAYIAK", ["1 of 1 sequences end in *"]),
        (b">a\nMKTA\n*\n", "MKTA", ["1 of 1 sequences end in *"]),
        (b">a\nmKTa\nYIAK\n", "MKTAYIAK", ["lower-case letters in 1 lines are read as capitals"]),
    ],
)
def test_a_fasta_file_has_letters_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, sequence: str,
    notes: list[str],
) -> None:  # fmt: skip
    file = tmp_path / "protein.fasta"
    file.write_bytes(content)
    assert sequence_of(str(file)) == sequence
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(notes)
    assert all(note in line for note, line in zip(notes, lines, strict=True))


@pytest.mark.parametrize(
    ("content", "line", "letter"),
    [
        (">a\nMK-TA\n", 2, "-"),
        (">a\nMKTA\nMK TA\n", 3, " "),
        (">a\nMKTA*\nMKTA\n", 2, "*"),
        ("; a comment\n>a\nMKTA\n", 1, ";"),
        (">a\nMK\u0422A\n", 2, "\u0422"),  # a Cyrillic letter
        (">a\nMK\ufeffTA\n", 2, "\ufeff"),
    ],
)
def test_other_letters_of_a_fasta_file_are_refused(
    tmp_path: Path, content: str, line: int, letter: str
) -> None:
    file = tmp_path / "protein.fasta"
    file.write_text(content)
    with pytest.raises(ValueError, match="letters only") as error:
        sequence_of(str(file))
    assert f"line {line} has {letter!r}" in str(error.value)
