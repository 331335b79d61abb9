-- The share of held-out target tokens found is an objective like any other now, under the name that says of what it is one:
-- `token_accuracy`. A program's own metrics keep their names.

update metric set name = 'token_accuracy'
where name = 'accuracy' and trial_id in (select id from trial where recipe is not null);

drop view trial_report;

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
    select trial_id, step, 'token_accuracy', accuracy from evaluation where accuracy is not null
) as curve
join trial on trial.id = curve.trial_id
join study on study.id = trial.study_id;
