-- What a trial told on its way, why it was stopped before its end, what was measured again, and why a study ended.

-- Metrics that a program of the user's reported on its way; the native engine's are in `evaluation`.
create table report (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Steps of training that the report stands for.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, step, name)
) strict, without rowid;

-- Trials that were stopped before they ran all their steps.
create table stop (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Steps of training it had done when it was stopped; 0 after the profile phase.
    rule text not null,                 -- Rule that stopped it, such as `dominance` or `known`.
    reason text not null                -- The rule's reason with its numbers.
) strict;

-- Metrics that a command's trial took over from one whose params agree in everything that can change them.
create table metric_inheritance (
    trial_id integer not null references trial (id) on delete cascade, -- Trial that took the value over.
    metric text not null,               -- Metric that was taken over.
    source_id integer not null references trial (id) on delete cascade, -- Trial that measured it.
    primary key (trial_id, metric)
) strict, without rowid;

-- Deleting a source looks for those that took over from it.
create index metric_inheritance_source on metric_inheritance (source_id);

-- What the sampler expected of a trial when it proposed it.
create table proposal (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    expected_improvement real not null  -- Hypervolume that the trial was expected to add, in the product of the objectives' units.
) strict;

-- Measurements of trials that were repeated to be sure of them, before a recommendation is final.
create table confirmation_run (
    trial_id integer not null references trial (id) on delete cascade, -- Trial whose params were run again.
    repeat integer not null check (repeat >= 1), -- Number of the repeat, from 1.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, repeat, name)
) strict, without rowid;

-- What the repeats of a trial say together.
create table confirmation (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the metric.
    value real not null,                -- Mean over the repeats; the highest for `peak_memory`.
    interval real not null,             -- Half width of the mean's 95% interval, as a share of the mean.
    repeats integer not null,           -- Repeats it comes from.
    primary key (trial_id, name)
) strict, without rowid;

-- Why each run of a study ended.
create table ending (
    id integer primary key,             -- Identity.
    study_id integer not null references study (id) on delete cascade, -- Study.
    ended_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    kind text not null check (kind in ('trials_done', 'time_spent', 'exhausted', 'interrupted', 'stopped')), -- What ended it; `stopped` is its `stop` rule.
    reason text not null,               -- The reason in words, with its numbers.
    trials integer not null             -- Finished trials by then.
) strict;

-- A study's endings are read by study.
create index ending_study on ending (study_id);

-- Metrics by trial and step: what the native engine evaluated on its way, or what a program of the user's reported.
create view trial_report as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    curve.step as step,                 -- Steps of training before it.
    curve.name as metric,               -- Name of the metric.
    curve.value as value                -- Value, in the metric's unit.
from (
    select trial_id, step, name, value from report
    union all
    select trial_id, step, 'loss', loss from evaluation where loss is not null
    union all
    select trial_id, step, 'accuracy', accuracy from evaluation where accuracy is not null
) as curve
join trial on trial.id = curve.trial_id
join study on study.id = trial.study_id;

-- Trials that were stopped early, with the rule. A complete one knew everything by then.
create view trial_stop as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    trial.state as state,               -- `pruned`, or `complete` where nothing was left to learn.
    stop.step as step,                  -- Steps of training it had done; 0 after the profile phase.
    stop.rule as rule,                  -- Rule that stopped it.
    stop.reason as reason               -- The rule's reason with its numbers.
from stop
join trial on trial.id = stop.trial_id
join study on study.id = trial.study_id;

-- Where the metrics that a command's trial did not measure itself come from.
create view trial_metric_source as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial that took the value over.
    metric_inheritance.metric as metric, -- Metric that was taken over.
    source.number as source             -- Number of the trial that measured it.
from metric_inheritance
join trial on trial.id = metric_inheritance.trial_id
join trial as source on source.id = metric_inheritance.source_id
join study on study.id = trial.study_id;

-- What was measured again, with its 95% interval.
create view trial_confirmation as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    confirmation.name as metric,        -- Name of the metric.
    confirmation.value as value,        -- Mean over the repeats; the highest for `peak_memory`.
    confirmation.interval as interval,  -- Half width of the mean's 95% interval, as a share of the mean.
    confirmation.repeats as repeats     -- Repeats it comes from.
from confirmation
join trial on trial.id = confirmation.trial_id
join study on study.id = trial.study_id;

-- Why each run of a study ended, the latest last.
create view study_ending as
select
    study.name as study,                -- Name of the study.
    ending.ended_at as ended_at,        -- When (UTC, ISO 8601).
    ending.kind as kind,                -- `trials_done`, `time_spent`, `exhausted`, `interrupted` or `stopped`.
    ending.reason as reason,            -- The reason in words, with its numbers.
    ending.trials as trials             -- Finished trials by then.
from ending
join study on study.id = ending.study_id
order by ending.id;
