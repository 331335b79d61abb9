-- One value of a metric everywhere: what repeats of a trial say goes before what it measured once, in the front as in every
-- command. Trials that only measured the cost of a training's variant are told apart from trainings.

drop view pareto_front;
drop view best_by_objective;
drop view feasible_trial;
drop view trial_summary;
drop view study_summary;

-- What counts of each trial: the mean of its repeats (the highest for `peak_memory`) where there are two or more, else what
-- it measured. The first measurements alone are in `trial_metric`.
create view counted_metric as
select
    metric.trial_id as trial_id,        -- Trial.
    metric.name as name,                -- Name of the metric.
    coalesce((select c.value from confirmation as c where c.trial_id = metric.trial_id and c.name = metric.name and c.repeats > 1), metric.value) as value -- Value, in the metric's unit.
from metric;

-- Trials that took their loss over from a training, and measured a cost at most.
create view variant as
select
    inheritance.trial_id as trial_id,   -- Trial.
    inheritance.source_id as source_id  -- Training that measured its loss.
from inheritance
where inheritance.part = 'loss'
union all
select metric_inheritance.trial_id, metric_inheritance.source_id
from metric_inheritance
where metric_inheritance.metric = 'loss';

-- One row a trial: outcome, main settings and the three usual objectives, as they count.
create view trial_summary as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    trial.state as state,               -- `waiting`, `running`, `complete`, `pruned`, `failed` or `skipped`.
    trial.reason as reason,             -- Why, for the last three: `out_of_memory`, `diverged`, ..., a rule, or a text.
    trial.rank as rank,                 -- Rank r of the adapter; null in full fine-tuning.
    trial.alpha as alpha,               -- Numerator of the scaling.
    trial.dropout as dropout,           -- Adapter dropout, in [0, 1).
    trial.target_modules as target_modules, -- Adapted modules, separated by commas, or a preset's name.
    trial.micro_batch as micro_batch,   -- Rows that go through the model at once.
    trial.gradient_accumulation as gradient_accumulation, -- Micro-batches in a step.
    trial.sequence_length as sequence_length, -- Longest row, in tokens.
    trial.packing as packing,           -- Whether rows hold several documents: 1 or 0.
    trial.precision as precision,       -- Storage of the base weights.
    trial.gradient_checkpointing as gradient_checkpointing, -- Which activations are recomputed.
    trial.optimizer as optimizer,       -- Update rule.
    trial.learning_rate as learning_rate, -- Peak learning rate.
    trial.schedule as schedule,         -- Course of the learning rate.
    trial.warmup as warmup,             -- Warm-up: steps (1 or more) or fraction of all steps.
    trial.weight_decay as weight_decay, -- Decoupled weight decay.
    trial.rslora as rslora,             -- Whether the scaling is rank-stabilised: 1 or 0.
    trial.dora as dora,                 -- Whether the adapter is weight-decomposed: 1 or 0.
    (select value from counted_metric where trial_id = trial.id and name = 'throughput') as throughput, -- Trained tokens per second, padding not counted.
    (select value from counted_metric where trial_id = trial.id and name = 'peak_memory') as peak_memory, -- Highest device bytes in use.
    (select value from counted_metric where trial_id = trial.id and name = 'loss') as loss, -- Held-out loss, in nats per target token.
    trial.wall_s as wall_s,             -- Wall-clock seconds of the trial.
    cast(trial.id in (select trial_id from variant) as integer) as variant -- 1 where it took its loss over and measured a cost at most, else 0.
from trial
join study on study.id = trial.study_id;

-- Complete trials that keep their study's constraints: those that may be on the front.
create view feasible_trial as
select
    trial.study_id as study_id,         -- Study.
    trial.id as trial_id                -- Trial.
from trial
where trial.state = 'complete'
  and not exists (
      select 1
      from study_constraint as c
      where c.study_id = trial.study_id
        and not coalesce(
            (
                select case c.bound when 'at_most' then m.value <= c."limit" else m.value >= c."limit" end
                from counted_metric as m
                where m.trial_id = trial.id and m.name = c.metric
            ),
            0
        )
  );

-- The rows of `trial_summary` that no other feasible trial of their study dominates (at least as good in every objective
-- of the study and better in one). Trials that lack an objective take no part; equal trials are all kept.
create view pareto_front as
-- The definition is `front` below with `point` in place of `candidate`; the rest only makes it quick, because 10,000
-- trials are up to a hundred million pairs. Nothing that the shortcuts drop could be on the front or decide who is.
with
-- The objectives as columns, all to be minimised; those that the study does not have are 0 for everyone.
point as materialized (
    select
        f.study_id,
        f.trial_id,
        coalesce(max(case o.position when 0 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v0,
        coalesce(max(case o.position when 1 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v1,
        coalesce(max(case o.position when 2 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v2,
        coalesce(max(case o.position when 3 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v3,
        coalesce(max(case o.position when 4 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v4,
        coalesce(max(case o.position when 5 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v5
    from feasible_trial as f
    join study_objective as o on o.study_id = f.study_id
    join counted_metric as m on m.trial_id = f.trial_id and m.name = o.metric
    group by f.trial_id
    having count(*) = (select count(*) from study_objective where study_id = f.study_id)
),
-- Lowest value and one over half the range of each objective. Halves, so that a range of nearly all numbers is finite.
span as materialized (
    select
        study_id,
        min(v0) as low0, 1 / nullif(max(v0) / 2 - min(v0) / 2, 0) as per0,
        min(v1) as low1, 1 / nullif(max(v1) / 2 - min(v1) / 2, 0) as per1,
        min(v2) as low2, 1 / nullif(max(v2) / 2 - min(v2) / 2, 0) as per2,
        min(v3) as low3, 1 / nullif(max(v3) / 2 - min(v3) / 2, 0) as per3,
        min(v4) as low4, 1 / nullif(max(v4) / 2 - min(v4) / 2, 0) as per4,
        min(v5) as low5, 1 / nullif(max(v5) / 2 - min(v5) / 2, 0) as per5
    from point
    group by study_id
),
-- Objectives scaled to [0, 1], where they are constant to 0. Rounding keeps their order, and so that of their sums.
scaled as materialized (
    select
        point.*,
        coalesce((v0 / 2 - low0 / 2) * per0, 0.0) as u0,
        coalesce((v1 / 2 - low1 / 2) * per1, 0.0) as u1,
        coalesce((v2 / 2 - low2 / 2) * per2, 0.0) as u2,
        coalesce((v3 / 2 - low3 / 2) * per3, 0.0) + coalesce((v4 / 2 - low4 / 2) * per4, 0.0)
            + coalesce((v5 / 2 - low5 / 2) * per5, 0.0) as u_rest
    from point
    join span using (study_id)
),
-- Each point's cell in a grid of ten by ten by ten over the first three objectives, and its sum of scaled objectives:
-- who dominates a point has a sum at most as large, which is one comparison instead of six.
placed as materialized (
    select
        study_id, trial_id, v0, v1, v2, v3, v4, v5,
        u0 + u1 + u2 + u_rest as total,
        cast(u0 * 10 as integer) as c0,
        cast(u1 * 10 as integer) as c1,
        cast(u2 * 10 as integer) as c2
    from scaled
),
-- The point with the smallest sum of each cell (SQLite takes the other columns from the row that has the minimum)...
best_of_cell as materialized (
    select study_id, v0, v1, v2, v3, v4, v5, min(total) as total
    from placed
    group by study_id, c0, c1, c2
    order by total
),
-- ... if no other cell's dominates it: a few dozen points that together dominate nearly all the others.
strong as materialized (
    select *
    from best_of_cell as a
    where not exists (
        select 1
        from best_of_cell as b
        where b.study_id = a.study_id
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
    order by total
),
candidate as materialized (
    select *
    from placed as a
    where not exists (
        select 1
        from strong as b
        where b.study_id = a.study_id
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
),
-- What is left is compared column of cells by column of cells: one that is somewhere worse than a point at its best
-- holds nobody who dominates the point.
cell as materialized (
    select
        study_id, c0, c1,
        min(v0) as v0, min(v1) as v1, min(v2) as v2, min(v3) as v3, min(v4) as v4, min(v5) as v5,
        min(total) as total
    from candidate
    group by study_id, c0, c1
    order by min(total)
),
front as materialized (
    select a.study_id, a.trial_id
    from candidate as a
    where not exists (
        select 1
        from cell
        cross join candidate as b
        where cell.study_id = a.study_id
          and cell.total <= a.total
          and cell.v0 <= a.v0 and cell.v1 <= a.v1 and cell.v2 <= a.v2
          and cell.v3 <= a.v3 and cell.v4 <= a.v4 and cell.v5 <= a.v5
          and b.study_id = cell.study_id and b.c0 = cell.c0 and b.c1 = cell.c1
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
)
select trial_summary.*
from front
-- `cross join` keeps this order: with a filter on `study`, the planner would go through the front once for each trial.
cross join trial on trial.id = front.trial_id
cross join study on study.id = front.study_id
cross join trial_summary on trial_summary.study = study.name and trial_summary.trial = trial.number;

-- The best feasible trial of each study in each of its objectives; the first of equals.
create view best_by_objective as
select
    study,                              -- Name of the study.
    metric,                             -- Objective.
    direction,                          -- `minimize` or `maximize`.
    trial,                              -- Number of the best trial.
    value                               -- Its value, in the metric's unit.
from (
    select
        study.name as study,
        o.metric as metric,
        o.direction as direction,
        o.position as position,
        trial.number as trial,
        m.value as value,
        row_number() over (
            partition by study.id, o.position
            order by case o.direction when 'maximize' then -m.value else m.value end, trial.number
        ) as place
    from feasible_trial as f
    join study on study.id = f.study_id
    join trial on trial.id = f.trial_id
    join study_objective as o on o.study_id = f.study_id
    join counted_metric as m on m.trial_id = f.trial_id and m.name = o.metric
)
where place = 1
order by study, position;

-- One row a study: what it asked and how far it is.
create view study_summary as
select
    study.name as study,                -- Name of the study.
    model.source as model,              -- Base model; null where not recorded.
    data_set.source as data_set,        -- Training data; null where not recorded.
    study.sampler as sampler,           -- Sampler that proposes the params.
    cast((select group_concat(metric, ',') from (select metric from study_objective where study_id = study.id order by position)) as text) as objectives, -- Objectives, separated by commas.
    cast((select count(*) from trial where study_id = study.id) as integer) as trials, -- Trials in any state.
    cast((select count(*) from trial where study_id = study.id and id in (select trial_id from variant)) as integer) as variants, -- Of these, those that took their loss over and measured a cost at most.
    cast((select count(*) from trial where study_id = study.id and state = 'complete') as integer) as complete, -- Trials that ran to their end.
    cast((select count(*) from trial where study_id = study.id and state = 'pruned') as integer) as pruned, -- Trials stopped early.
    cast((select count(*) from trial where study_id = study.id and state = 'failed') as integer) as failed, -- Trials that failed.
    cast((select count(*) from trial where study_id = study.id and state = 'skipped') as integer) as skipped, -- Trials that were not run.
    cast((select count(*) from trial where study_id = study.id and state in ('waiting', 'running')) as integer) as unfinished, -- Trials running, or to be repeated.
    cast((select total(wall_s) from trial where study_id = study.id) as real) as wall_s, -- Wall-clock seconds of all trials.
    study.created_at as created_at,     -- When the study began (UTC, ISO 8601).
    study.resumed_at as resumed_at      -- When it was last resumed (UTC, ISO 8601).
from study
left join model on model.id = study.model_id
left join data_set on data_set.id = study.data_set_id;
