-- How far a search is cannot be told from its trials alone: the budget may come from the command line, and what follows the trials leaves none.

-- What the running or the last search of a study may spend, and what it does now.
create table search_state (
    study_id integer primary key references study (id) on delete cascade, -- Study.
    budget_trials integer check (budget_trials >= 0), -- Trials that the study may have, variants not counted; null where time alone limits it.
    budget_s real check (budget_s >= 0 and budget_s <= 1.7976931348623157e308), -- Seconds that its trials may take together; null where their number alone limits it.
    workers integer not null check (workers >= 1), -- Trials that run side by side.
    stage text not null check (stage in ('trials', 'measuring_again', 'confirming', 'ended')), -- What the search does; a search whose process was lost keeps its last stage.
    stage_since text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) -- Since when (UTC, ISO 8601).
) strict;
