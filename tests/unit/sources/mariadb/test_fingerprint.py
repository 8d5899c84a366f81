"""What is said to have happened between two fingerprints of a MariaDB table, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strobe.sources.mariadb.fingerprint import ANY, Fingerprint, changed, without_counters

DEFINITION = """CREATE TABLE `t` (
  `id` int(11) NOT NULL AUTO_INCREMENT,
  `v` int(11) DEFAULT NULL,
  `w` varchar(10) DEFAULT 'x' COMMENT 'it''s, \\'v\\'',
  `a``b` int(11) DEFAULT 1,
  `g` int(11) GENERATED ALWAYS AS (`a``b` * 2) STORED,
  `note` text DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `by_v` (`v`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci COMMENT='AUTO_INCREMENT=5'"""
OLD = Fingerprint((("", "7", "3"),), 1000, DEFINITION)
USED = ("id", "v", "w")


def announced(definition: str = DEFINITION, columns: dict[str, str] | None = None) -> Fingerprint:
    """The table after a change that the log announced."""
    return Fingerprint((("", "9", "5"),), 2000, definition, False, ((OLD.generation, columns or {}),), "binlog.1:9")


def test_a_new_generation_has_to_be_announced() -> None:
    """By a statement that touched no column that is used, nor one that it is computed from."""
    new = announced(columns={"note": "note was changed", "a`b": "a`b was changed"})
    assert changed(USED, OLD.text(), OLD.text()) == "" == changed(USED, OLD.text(), new.text())
    assert changed(("NOTE",), OLD.text(), new.text()) == "note was changed"
    assert changed(("g",), OLD.text(), new.text()) == "a`b was changed"
    silent = replace(new, ancestors=())
    assert "binlog does not report" in changed(USED, OLD.text(), silent.text())
    assert "definition" in changed(USED, OLD.text(), replace(OLD, created=1001).text())
    assert changed(USED, OLD.text(), replace(silent, harm="it was truncated").text()) == "it was truncated"
    assert changed(USED, "", new.text()) and changed(USED, OLD.text(), "")


def test_the_unknown_ancestor_explains_only_what_was_announced_later() -> None:
    """A new process has not seen the table before: what it read in the log may be older than what is stored."""
    new = replace(announced(), ancestors=((ANY, {}),))
    assert changed(USED, OLD.text(), new.text()) == ""
    assert changed(USED, replace(OLD, announced=new.announced).text(), new.text())


@pytest.mark.parametrize(
    ("was", "is_now", "what"),
    [
        ("AUTO_INCREMENT=5", "AUTO_INCREMENT=6", ""),
        ("`note` text DEFAULT NULL", "`note` int(11) DEFAULT NULL", ""),
        ("  `note` text DEFAULT NULL,\n", "", ""),
        ("`v` int(11) DEFAULT NULL", "`v` int(11) DEFAULT 5 COMMENT 'bigint'", ""),
        ("  KEY `by_v` (`v`)", "  UNIQUE KEY `by_w` (`w`)", ""),
        ("DEFAULT 'x' COMMENT 'it''s, \\'v\\''", "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT NULL", ""),
        ("`v` int(11)", "`v` bigint(20)", "column v"),
        ("`v` int(11)", "`v` int(10) unsigned", "column v"),
        ("  `w` ", "  `z` ", "column w"),
        ("DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci", "DEFAULT CHARSET=latin1", "column w"),
        ("PRIMARY KEY (`id`)", "PRIMARY KEY (`id`,`v`)", "primary key"),
        ("ENGINE=InnoDB", "ENGINE=MyISAM", "engine"),
        ("ENGINE=InnoDB", "ENGINE=InnoDB WITH SYSTEM VERSIONING", "system versioning"),
        ("KEY `by_v` (`v`)", "CONSTRAINT `f` FOREIGN KEY (`v`) REFERENCES `p` (`id`) ON DELETE CASCADE", "foreign-key"),
        ("KEY `by_v` (`v`)", "CONSTRAINT `f` FOREIGN KEY (`v`) REFERENCES `p` (`id`)", ""),
    ],
)
def test_the_definition_is_compared_where_the_change_was_announced(was: str, is_now: str, what: str) -> None:
    """As a second witness: of the columns that are used, what concerns their values."""
    assert was in DEFINITION
    found = changed(USED, OLD.text(), announced(DEFINITION.replace(was, is_now)).text())
    assert (what in found) if what else found == ""


def test_actions_count_as_long_as_the_server_does_not_log_them() -> None:
    """A server may be started with another setting, which no statement announces."""
    with_action = DEFINITION.replace(
        "KEY `by_v` (`v`)", "CONSTRAINT `f` FOREIGN KEY (`v`) REFERENCES `p` (`id`) ON DELETE CASCADE"
    )
    old = replace(OLD, definition=with_action, logs_actions=True)
    assert changed(USED, old.text(), replace(old, logs_actions=False).text())
    assert changed(USED, OLD.text(), replace(announced(with_action), logs_actions=True).text()) == ""


def test_the_counter_is_no_part_of_a_definition() -> None:
    """It moves with every row; the same words in a comment stay."""
    counting = DEFINITION.replace("ENGINE=InnoDB", "ENGINE=InnoDB AUTO_INCREMENT=17")
    assert without_counters(counting) == DEFINITION
