-- What people ask of a study while another process runs it: pages and scripts write, the study loop reads.

-- Requests to a study, in the order in which they were made.
create table request (
    id integer primary key,             -- Identity; later requests have larger ones.
    study_id integer not null references study (id) on delete cascade, -- Study.
    kind text not null check (kind in ('pause', 'resume', 'stop', 'enqueue')), -- What is asked for.
    params text check (params is null or json_valid(params)), -- JSON of the setting to run, for `enqueue`.
    made_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was made (UTC, ISO 8601).
    outcome text check (outcome in ('done', 'refused', 'expired')), -- What became of it; null while it waits.
    detail text,                        -- Why it was refused, or number of the trial that ran the setting.
    check ((kind = 'enqueue') = (params is not null))
) strict;

-- The study loop looks for waiting requests a few times a second, and there are seldom any.
create index request_waiting on request (study_id, id) where outcome is null;
