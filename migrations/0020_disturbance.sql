-- Measurements that something else on the machine slowed down: what was measured again, and ceilings that are not to be trusted.

-- Every measurement of a trial whose profile phase ran more than once; `metric` has what counts.
create table measurement (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    attempt integer not null check (attempt >= 0), -- 0 for the first measurement, then the repeats in order.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, attempt, name)
) strict, without rowid;

alter table ceiling rename to ceiling_before;

-- Measured ceilings of a machine; one row for each build of the program and number of threads.
-- Those of a busy moment are kept for want of better ones, and measured again by the next program that reads them.
create table ceiling (
    machine_id integer not null references machine (id) on delete cascade, -- Machine that was measured.
    build text not null,                -- Version and kind of build of the program that measured.
    threads integer not null,           -- Threads that computed.
    measured_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    memory_bytes_per_s real not null,   -- Bytes a second that copying large memory reads and writes.
    wake_s real not null,               -- Seconds to wake all threads for an op that does nothing.
    grids text not null check (json_valid(grids)), -- JSON of all that was measured: times of the engine's ops by dtype and size.
    disturbed real not null default 0 check (disturbed between 0 and 1), -- Share of the speed that may have been lost to other programs; 0 where it was quiet.
    primary key (machine_id, build, threads)
) strict;

insert into ceiling (machine_id, build, threads, measured_at, memory_bytes_per_s, wake_s, grids)
select machine_id, build, threads, measured_at, memory_bytes_per_s, wake_s, grids from ceiling_before;

drop table ceiling_before;

-- Every measurement of trials that were measured again.
create view trial_measurement as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    measurement.attempt as attempt,     -- 0 for the first measurement, then the repeats in order.
    measurement.name as metric,         -- Name of the metric.
    measurement.value as value          -- Value, in the metric's unit.
from measurement
join trial on trial.id = measurement.trial_id
join study on study.id = trial.study_id;

-- Trials whose throughput was measured while something else slowed the machine down, and not in peace since.
create view disturbed_trial as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    mark.value as lost,                 -- Share of the throughput that may have been lost, in (0, 1).
    measured.value as throughput,       -- Measured tokens a second.
    cast(measured.value / (1 - mark.value) as real) as at_most -- What the setting may reach in peace.
from metric as mark
join trial on trial.id = mark.trial_id
join study on study.id = trial.study_id
left join metric as measured on measured.trial_id = mark.trial_id and measured.name = 'throughput'
where mark.name = 'disturbed' and mark.value > 0 and mark.value < 1;
