//! `selvedge memory layer`: reference texts that a person writes.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use selvedge_memory::{Lesson, LessonEdit, LessonKind, Memory, NewLesson};
use selvedge_text::count_noun;

use super::args::{
    MemoryLayerAddArgs, MemoryLayerCommand, MemoryLayerEditArgs, MemoryLayerListArgs,
};
use super::project_of_this_folder;
use crate::CliStatus;
use crate::memory_setup::project_place;
use crate::output::print_line;
use crate::problem::Problem;

/// Longest file that is read, in bytes. A layer of 5,000 tokens is far shorter.
const MAX_LAYER_FILE_BYTES: u64 = 1 << 20;

pub(super) fn layer(memory: &Memory, command: &MemoryLayerCommand) -> Result<CliStatus> {
    match command {
        MemoryLayerCommand::Add(args) => add(memory, args),
        MemoryLayerCommand::Edit(args) => edit(memory, args),
        MemoryLayerCommand::Remove(args) => {
            memory.remove_layer(&args.layer)?;
            eprint_line!("removed {}", args.layer);
            Ok(CliStatus::Success)
        }
        MemoryLayerCommand::List(args) => list(memory, args),
    }
}

fn add(memory: &Memory, args: &MemoryLayerAddArgs) -> Result<CliStatus> {
    let content = read_layer(&args.file)?;
    let title = match &args.title {
        Some(title) => title.clone(),
        None => title_of(&content, &args.file),
    };
    let project = match args.user {
        true => None,
        false => Some(memory.open_project(&project_place(&this_folder()?).root)?),
    };
    let id = memory.add_lesson(&NewLesson {
        kind: LessonKind::Layer,
        title: &title,
        topics: &args.topics,
        content: &content,
        project: project.as_deref(),
    })?;
    let scope = if args.user {
        "all projects"
    } else {
        "this project"
    };
    eprint_line!("added {id}: {title} (used in {scope})");
    Ok(CliStatus::Success)
}

fn edit(memory: &Memory, args: &MemoryLayerEditArgs) -> Result<CliStatus> {
    let content = args.file.as_deref().map(read_layer).transpose()?;
    let project = match args.project {
        true => Some(memory.open_project(&project_place(&this_folder()?).root)?),
        false => None,
    };
    let edit = LessonEdit {
        title: args.title.clone(),
        topics: (!args.topics.is_empty()).then(|| args.topics.clone()),
        content,
        project: (args.user || args.project).then_some(project),
    };
    if edit == LessonEdit::default() {
        let problem = Problem::new("nothing to change");
        return Err(problem
            .hint("pass a FILE with the new text, --title, --topic, --user or --project")
            .into());
    }
    memory.edit_layer(&args.layer, &edit)?;
    eprint_line!("changed {}", args.layer);
    Ok(CliStatus::Success)
}

fn list(memory: &Memory, args: &MemoryLayerListArgs) -> Result<CliStatus> {
    let project = match args.all {
        true => None,
        // A folder without a project has the layers of the user only.
        false => Some(project_of_this_folder(memory)?.unwrap_or_default()),
    };
    let layers = memory.layers(project.as_deref())?;
    if args.json {
        return crate::output::print_json(&layers);
    }
    for layer in &layers {
        print_line(&layer_line(layer))?;
    }
    if layers.is_empty() {
        eprint_line!("note: no layers yet; write one with `selvedge memory layer add FILE`");
    }
    Ok(CliStatus::Success)
}

/// Returns one line about a layer, without its text.
fn layer_line(layer: &Lesson) -> String {
    let scope = if layer.project.is_some() {
        "project"
    } else {
        "user"
    };
    let origin = match layer.source_turns.len() {
        0 => "by hand".to_owned(),
        turns => format!("from {}", count_noun(turns, "turn")),
    };
    let topics = match layer.topic.is_empty() {
        true => String::new(),
        false => format!("  [{}]", layer.topic.join(", ")),
    };
    format!(
        "{}  {:<8} {scope:<7} {:>5} tokens  {}{topics}  {origin}",
        layer.lesson_id,
        layer.status.as_str(),
        layer.tokens,
        layer.title
    )
}

/// Returns the first heading of a text, else the name of its file.
fn title_of(content: &str, file: &Path) -> String {
    let heading = content.lines().find_map(|line| line.strip_prefix("# "));
    let stem = file.file_stem().filter(|stem| *stem != "-");
    match (heading, stem) {
        (Some(heading), _) => heading.trim().to_owned(),
        (None, Some(stem)) => stem.to_string_lossy().into_owned(),
        (None, None) => "Notes".to_owned(),
    }
}

/// Reads the text of a layer from a file, or from standard input for `-`.
fn read_layer(file: &Path) -> Result<String> {
    let problem = |error: std::io::Error| {
        Problem::new(format!("cannot read {}: {error}", file.display()))
            .hint("pass a text file, or `-` for standard input")
    };
    let input: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(problem)?),
    };
    let mut text = String::new();
    let mut bounded = input.take(MAX_LAYER_FILE_BYTES);
    bounded.read_to_string(&mut text).map_err(problem)?;
    Ok(text.trim().to_owned())
}

/// Returns this folder, with links resolved.
fn this_folder() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    Ok(here.canonicalize().unwrap_or(here))
}
