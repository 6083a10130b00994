//! `warmroute-hub verify` against engines: it agrees with one of the same model, and finds one of another.

use std::process::Output;

use tokio::process::Command;
use warmroute::native::load::programs::Programs;
use warmroute::native::load::stack::Stack;

use super::*;

/// Compares an engine of `model` with the directory of `ours`.
async fn verify(stack: &Stack, engine: usize, model: &str, ours: &str) -> Output {
    let programs = Programs::find().unwrap_or_else(|missing| panic!("{missing}"));
    let mut command = Command::new(programs.hub);
    command.args(["verify", "--engine", &stack.engine_url(engine), "--model", model]);
    command.arg(models_directory().join(ours)).kill_on_drop(true).output().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_the_model_agrees_and_one_of_another_does_not() {
    let stack = text_stack(|options| options.engines = 2).await;
    for (engine, model) in [(0, BYTES), (1, CHARS)] {
        let output = verify(&stack, engine, model, model).await;
        assert!(output.status.success(), "{model}: {output:?}");
    }
    let output = verify(&stack, 1, CHARS, BYTES).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
