//! Who begins, who waits and who goes first.

use std::sync::mpsc;

use super::*;

fn project(name: &str) -> ProjectId {
    name.parse().expect("an id")
}

/// A dry run that pauses until it is told to end.
struct Held {
    end: mpsc::Sender<()>,
    result: tokio::task::JoinHandle<Result<(), DryRunError>>,
}

fn start(runs: &DryRuns, name: &str, kind: DryRunKind) -> Held {
    let (end, ended) = mpsc::channel::<()>();
    let (runs, project) = (runs.clone(), project(name));
    let result = tokio::spawn(async move {
        let work = move |steps: &mut Steps| {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                steps.pause()?;
                thread::yield_now();
            }
            Ok(())
        };
        runs.run(&project, kind, Deadline::NEVER, work).await
    });
    Held { end, result }
}

/// Waits until so many wait, and so many run.
async fn until(runs: &DryRuns, waiting: usize, running: usize) {
    let waits = async {
        while runs.0.queue().counts() != (waiting, running) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = timeout(Duration::from_secs(20), waits).await;
    let counts = runs.0.queue().counts();
    assert!(in_time.is_ok(), "{counts:?}, not {:?}", (waiting, running));
}

#[tokio::test]
async fn each_project_runs_one_at_a_time_and_eight_wait() {
    let runs = DryRuns::default();
    let mut held = vec![start(&runs, "shop", DryRunKind::Validation)];
    until(&runs, 0, 1).await;
    for waiting in 1..=8 {
        held.push(start(&runs, "shop", DryRunKind::Validation));
        until(&runs, waiting, 1).await;
    }
    let refused = start(&runs, "shop", DryRunKind::Validation).result.await.expect("a task");
    assert_eq!(refused, Err(DryRunError::TooMany));
    // Another project begins, although its calls came later.
    let other = start(&runs, "blog", DryRunKind::Validation);
    until(&runs, 8, 2).await;
    other.end.send(()).expect("it runs");
    assert_eq!(other.result.await.expect("a task"), Ok(()));
    for Held { end, result } in held {
        end.send(()).expect("it runs or waits");
        assert_eq!(result.await.expect("a task"), Ok(()));
    }
    until(&runs, 0, 0).await;
}

#[tokio::test]
async fn project_with_most_that_wait_loses_one_to_another() {
    let runs = DryRuns::default();
    let mut held = Vec::new();
    // Both previews that may run.
    for (name, running) in [("shop", 1), ("blog", 2)] {
        held.push(start(&runs, name, DryRunKind::Preview));
        until(&runs, 0, running).await;
    }
    for waiting in 1..=8 {
        held.push(start(&runs, "shop", DryRunKind::Preview));
        until(&runs, waiting, 2).await;
    }
    held.push(start(&runs, "news", DryRunKind::Preview));
    let lost = held.remove(9);
    assert_eq!(lost.result.await.expect("a task"), Err(DryRunError::TooMany));
    until(&runs, 8, 2).await;
    let refused = start(&runs, "shop", DryRunKind::Preview).result.await.expect("a task");
    assert_eq!(refused, Err(DryRunError::TooMany));
    // A validation needs no place of a preview.
    let other = start(&runs, "desk", DryRunKind::Validation);
    until(&runs, 8, 3).await;
    drop(other);
    for Held { end, .. } in held {
        end.send(()).expect("it runs or waits");
    }
    until(&runs, 0, 0).await;
}

#[tokio::test]
async fn dry_run_ends_with_its_caller_and_its_deadline() {
    let runs = DryRuns::default();
    let one = start(&runs, "shop", DryRunKind::Validation);
    until(&runs, 0, 1).await;
    let waits = start(&runs, "shop", DryRunKind::Validation);
    until(&runs, 1, 1).await;
    waits.result.abort();
    until(&runs, 0, 1).await;
    one.result.abort();
    until(&runs, 0, 0).await;
    let endless = |steps: &mut Steps| -> Result<(), Stopped> {
        loop {
            steps.pause()?;
        }
    };
    let soon = Deadline::within(Duration::from_millis(50));
    let ended = runs.run(&project("shop"), DryRunKind::Preview, soon, endless).await;
    assert_eq!(ended, Err(DryRunError::Expired));
    until(&runs, 0, 0).await;
}

#[tokio::test]
async fn revision_goes_first() {
    let runs = DryRuns::default();
    let (told, steps_made) = mpsc::channel::<()>();
    let (sender, running) = (runs.clone(), project("shop"));
    let task = tokio::spawn(async move {
        let work = move |steps: &mut Steps| {
            while told.send(()).is_ok() {
                steps.pause()?;
            }
            Ok(())
        };
        sender.run(&running, DryRunKind::Validation, Deadline::NEVER, work).await
    });
    until(&runs, 0, 1).await;
    let revision = runs.revision();
    let made = || steps_made.try_iter().count();
    made();
    let blog = start(&runs, "blog", DryRunKind::Validation);
    until(&runs, 0, 2).await;
    // Between two pauses it may have been when the revision began.
    assert!(made() <= 1, "it goes on while a revision is made");
    drop(revision);
    let goes_on = async {
        while made() == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), goes_on).await.expect("it goes on");
    blog.end.send(()).expect("it runs");
    assert_eq!(blog.result.await.expect("a task"), Ok(()), "both take turns");
    drop(steps_made);
    assert_eq!(task.await.expect("a task"), Ok(()));
}
