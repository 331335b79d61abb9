-- What a trial was expected to measure, and the ceilings of machines that this is computed from.

-- Measured ceilings of a machine; one row for each build of the program and number of threads.
create table ceiling (
    machine_id integer not null references machine (id) on delete cascade, -- Machine that was measured.
    build text not null,                -- Version and kind of build of the program that measured.
    threads integer not null,           -- Threads that computed.
    measured_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    memory_bytes_per_s real not null,   -- Bytes a second that copying large memory reads and writes.
    wake_s real not null,               -- Seconds to wake all threads for an op that does nothing.
    grids text not null check (json_valid(grids)), -- JSON of all that was measured: times of the engine's ops by dtype and size.
    primary key (machine_id, build, threads)
) strict;

-- Predicted metrics of trials, as they were before the trial ran.
create table prediction (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    metric text not null,               -- Metric, such as `throughput`.
    value real not null,                -- Expected value, in the metric's unit.
    deviation real not null check (deviation >= 0), -- Relative standard deviation of the expectation's error.
    primary key (trial_id, metric)
) strict, without rowid;

-- Predicted beside measured, one row a trial and metric.
create view trial_prediction as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    prediction.metric as metric,        -- Metric.
    prediction.value as predicted,      -- What was expected before the trial ran.
    prediction.deviation as deviation,  -- Relative standard deviation of the expectation's error.
    metric.value as measured,           -- What was measured; null where it was not.
    cast(metric.value / prediction.value - 1 as real) as error -- Measured over predicted, minus one.
from prediction
join trial on trial.id = prediction.trial_id
join study on study.id = trial.study_id
left join metric on metric.trial_id = prediction.trial_id and metric.name = prediction.metric;
