//! The program's exit codes: one table, from which the page `docs/exit-codes.md` has its rows.

pub(super) const FAILED: u8 = 1;
pub(super) const BAD_INPUT: u8 = 2;
pub(super) const DATABASE: u8 = 3;
pub(super) const TAKEN: u8 = 4;
pub(super) const WORKERS: u8 = 5;
pub(super) const INPUT_CHANGED: u8 = 6;
pub(super) const DOES_NOT_FIT: u8 = 7;
pub(super) const MAY_NOT_FIT: u8 = 8;
pub(super) const TOOL_REFUSES: u8 = 9;
pub(super) const NOT_CHECKED: u8 = 10;
pub(super) const ENGINES_DIFFER: u8 = 11;
pub(super) const CANNOT_RUN: u8 = 126;
pub(super) const NOT_FOUND: u8 = 127;

/// One exit code.
#[derive(Clone, Copy, Debug)]
pub struct ExitRow {
    pub code: u8,
    /// How the command ended, as Markdown.
    pub ending: &'static str,
    /// What is left of its work, and what to do.
    pub left: &'static str,
}

const fn row(code: u8, ending: &'static str, left: &'static str) -> ExitRow {
    ExitRow { code, ending, left }
}

const ROWS: [ExitRow; 17] = [
    row(
        0,
        "done. A search: its budget is spent, nothing is left to propose, or its `stop` rule ended it",
        "everything is stored",
    ),
    row(
        FAILED,
        "something failed while running that none of the codes below names, or no trial succeeded",
        "what was finished is stored; the message says what failed",
    ),
    row(
        BAD_INPUT,
        "bad input or usage: a mistake in a file, a missing file, a database that cannot be used, an unknown flag",
        "nothing was begun; the message names the file, the key and what to do",
    ),
    row(
        DATABASE,
        "the results database failed while it was used",
        "finished trials are stored; fix the cause and start the same command again",
    ),
    row(
        TAKEN,
        "another process runs the study",
        "nothing was begun; `peft-tune attach` watches that process, `peft-tune stop` ends it",
    ),
    row(
        WORKERS,
        "no worker can be kept alive",
        "finished trials are stored, those under way are handed back",
    ),
    row(
        INPUT_CHANGED,
        "a file that trials read (base model, data) was changed or removed while the study ran",
        "the same; restore the file, or give the study a new name",
    ),
    row(
        DOES_NOT_FIT,
        "`plan --stack` or `plan --check`: the setting does not fit the device",
        "the plan is printed; its levers say what would save memory",
    ),
    row(
        MAY_NOT_FIT,
        "the same: it is uncertain whether it fits, because less than the stated reserve would be left",
        "the same",
    ),
    row(
        TOOL_REFUSES,
        "`export --check` and `--receipt`: the installed tool refuses the files",
        "the files are written; the message is the tool's",
    ),
    row(
        NOT_CHECKED,
        "the same: the tool is not installed, cannot be used, or took too long",
        "the files are written; `--python` names another Python",
    ),
    row(
        ENGINES_DIFFER,
        "`check` and `export --receipt`: the two do not train alike",
        "the comparison, or the receipt beside the files, says where they differ and by how much",
    ),
    row(
        CANNOT_RUN,
        "`watch`: the command cannot be run",
        "nothing was begun; the message is the system's",
    ),
    row(NOT_FOUND, "`watch`: there is no such command", "nothing was begun"),
    row(
        129,
        "the terminal was closed (SIGHUP): the trials under way were finished",
        "the same command continues",
    ),
    row(
        130,
        "Ctrl-C (SIGINT), `peft-tune stop`, or a request of the dashboard: the trials under way were finished",
        "the same command continues",
    ),
    row(
        143,
        "SIGTERM, as schedulers send it: as for Ctrl-C",
        "the same command continues",
    ),
];

/// Every code that a command ends with, in order.
pub fn exit_codes() -> &'static [ExitRow] {
    &ROWS
}
