//! What clients of the agent server see of the memory: the gradient of a session, a turn at each
//! level, lessons, topics, and what a search finds.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use selvedge_config::MemorySettings;
use selvedge_memory::{
    AssembledHistory, GradientOptions, Lesson, LessonEdit, LessonKind, Level, Memory, MemoryError,
    MemoryHit, MemoryQuery, NewLesson, PlanStorage, ProposalDecision, TopicTrend,
};
use selvedge_server::{
    AddLesson, EditLesson, HostError, HostErrorKind, HostedBand, HostedGradient, HostedLesson,
    HostedLessonScope, HostedMemoryHit, HostedTopic, HostedTopics, HostedTurnLevel, LessonReview,
    UserLessonReach, WrittenLessonKind,
};
use selvedge_text::truncate_chars;

use crate::memory::MAX_CHART_WEEKS;
use crate::memory_setup::project_place;

/// Most topics of a request.
const MAX_TOPICS: usize = 20;
/// Most characters of the first line of a lesson that become its title.
const MAX_TITLE_CHARS: usize = 60;

/// Returns how a prompt contains the turns of a session.
pub(crate) async fn gradient(
    memory: Arc<Memory>,
    session: &str,
    config: &MemorySettings,
) -> Result<HostedGradient, HostError> {
    let options = GradientOptions {
        budget: config.history_tokens,
        band_shares: config.level_shares,
    };
    let session = session.to_owned();
    let shown = read(memory, move |memory| match memory.turn_count(&session)? {
        0 => Ok(AssembledHistory::default()),
        _ => memory.assemble(&session, options, PlanStorage::Discard),
    })
    .await?;
    let bands = shown.bands.iter().map(|band| HostedBand {
        first: band.span.first,
        last: band.span.last,
        level: band.span.level.as_str().to_owned(),
        era: band.era,
        tokens: band.tokens,
    });
    Ok(HostedGradient {
        budget: options.budget,
        tokens: shown.tokens,
        bands: bands.collect(),
    })
}

/// Returns a turn at all levels, the most detailed first.
pub(crate) async fn turn_levels(
    memory: Arc<Memory>,
    session: &str,
    turn: u32,
) -> Result<Vec<HostedTurnLevel>, HostError> {
    let session = session.to_owned();
    read(memory, move |memory| {
        let levels = Level::ALL.into_iter().map(|level| {
            let text = memory.turn_at_level(&session, turn, level)?;
            let text = String::from_utf8_lossy(&text);
            Ok(HostedTurnLevel {
                level: level.as_str().to_owned(),
                // The raw level is not redacted.
                text: memory.redact(&text).into_owned(),
            })
        });
        levels.collect()
    })
    .await
}

/// Returns the lessons that were learned only from these sessions, those that a person wrote for a
/// project of one of them or of one of the workspaces, and those of all projects that `user`
/// reaches.
pub(crate) async fn lessons_of(
    memory: Arc<Memory>,
    sessions: Vec<String>,
    workspaces: &[String],
    user: UserLessonReach,
) -> Result<Vec<HostedLesson>, HostError> {
    let sessions: HashSet<String> = sessions.into_iter().collect();
    let roots: Vec<String> = workspaces.iter().map(|folder| root_of(folder)).collect();
    read(memory, move |memory| {
        let mut projects: Option<HashSet<String>> = None;
        let mut shown = Vec::new();
        for lesson in memory.lessons(None)? {
            let is_shown = match (lesson.source_turns.as_slice(), &lesson.project) {
                (_, None) if user == UserLessonReach::All => true,
                ([], None) => false,
                ([], Some(project)) => {
                    let known = match projects.take() {
                        Some(known) => known,
                        None => projects_of(memory, &sessions, &roots)?,
                    };
                    projects.insert(known).contains(project)
                }
                (sources, _) => sources.iter().all(|source| {
                    let session = source.rsplit_once('/').map(|(session, _)| session);
                    session.is_some_and(|session| sessions.contains(session))
                }),
            };
            if is_shown {
                shown.push(view(lesson));
            }
        }
        Ok(shown)
    })
    .await
}

/// Returns the root of the project that a folder belongs to.
fn root_of(folder: &str) -> String {
    project_place(Path::new(folder)).root
}

/// Returns the projects of sessions, and those with the given roots.
fn projects_of(
    memory: &Memory,
    sessions: &HashSet<String>,
    roots: &[String],
) -> Result<HashSet<String>, MemoryError> {
    let mut projects = HashSet::new();
    for root in roots {
        projects.extend(memory.find_project(root)?);
    }
    for session in sessions {
        projects.extend(memory.project_of(session)?);
    }
    Ok(projects)
}

fn view(lesson: Lesson) -> HostedLesson {
    HostedLesson {
        id: lesson.lesson_id,
        kind: lesson.kind.as_str().to_owned(),
        status: lesson.status.as_str().to_owned(),
        title: lesson.title,
        topics: lesson.topic,
        content: lesson.content,
        scope: match lesson.project {
            Some(_) => HostedLessonScope::Project,
            None => HostedLessonScope::User,
        },
        sources: lesson.source_turns,
        weight: lesson.weight,
        updated_ms: lesson.last_updated,
    }
}

/// Stores a lesson that a person wrote, for the project of a workspace, and returns its id.
pub(crate) async fn add_lesson(
    memory: Arc<Memory>,
    workspace: &str,
    lesson: AddLesson,
) -> Result<String, HostError> {
    let root = root_of(workspace);
    read(memory, move |memory| {
        let content = lesson.content.trim();
        let first_line = content.lines().next().unwrap_or_default();
        let first_line = truncate_chars(first_line, MAX_TITLE_CHARS);
        let title = lesson.title.as_deref().map(str::trim);
        let title = title.filter(|title| !title.is_empty());
        let project = memory.open_project(&root)?;
        memory.add_lesson(&NewLesson {
            kind: match lesson.kind {
                WrittenLessonKind::Lesson => LessonKind::Lesson,
                WrittenLessonKind::Preference => LessonKind::Preference,
                WrittenLessonKind::Problem => LessonKind::Problem,
                WrittenLessonKind::Convention => LessonKind::Convention,
                WrittenLessonKind::Layer => LessonKind::Layer,
            },
            title: title.unwrap_or(&first_line),
            topics: &lesson.topics,
            content,
            project: Some(&project),
        })
    })
    .await
}

/// Decides about a lesson.
pub(crate) async fn review_lesson(
    memory: Arc<Memory>,
    lesson: &str,
    review: LessonReview,
) -> Result<(), HostError> {
    let lesson = lesson.to_owned();
    read(memory, move |memory| match review {
        LessonReview::Accept => memory.review_lesson(&lesson, ProposalDecision::Accept),
        LessonReview::Decline => memory.review_lesson(&lesson, ProposalDecision::Decline),
        LessonReview::Forget => memory.forget_lesson(&lesson),
    })
    .await
}

/// Changes the text of a lesson.
pub(crate) async fn edit_lesson(
    memory: Arc<Memory>,
    lesson: &str,
    edit: EditLesson,
) -> Result<(), HostError> {
    let lesson = lesson.to_owned();
    read(memory, move |memory| {
        let edit = LessonEdit {
            title: edit.title,
            content: edit.content,
            topics: edit.topics,
            project: None,
        };
        memory.edit_lesson(&lesson, &edit)
    })
    .await
}

/// Returns the topics of sessions over time.
pub(crate) async fn topics_of(
    memory: Arc<Memory>,
    sessions: Vec<String>,
) -> Result<HostedTopics, HostError> {
    let trends = read(memory, move |memory| memory.topic_trends_of(&sessions));
    let mut trends = trends.await?;
    let weeks = TopicTrend::latest_weeks(&trends, MAX_CHART_WEEKS);
    trends.truncate(MAX_TOPICS);
    let view = |trend: TopicTrend| HostedTopic {
        turns_by_week: trend.turns_in(&weeks),
        name: trend.topic.name,
        category: trend.topic.category,
        turns: trend.topic.turns,
    };
    Ok(HostedTopics {
        topics: trends.into_iter().map(view).collect(),
        weeks,
    })
}

/// Returns the turns of sessions that match, the best first.
pub(crate) async fn search(
    memory: Arc<Memory>,
    sessions: Vec<String>,
    query: &str,
    limit: usize,
) -> Result<Vec<HostedMemoryHit>, HostError> {
    let query = query.to_owned();
    read(memory, move |memory| {
        let query = MemoryQuery {
            max_turns: limit,
            sessions: Some(&sessions),
            ..MemoryQuery::new(&query)
        };
        let view = |hit: MemoryHit| {
            // Other levels are redacted; the raw one is not.
            let text = memory.turn_at_level(&hit.session, hit.number, Level::Smoothed)?;
            Ok(HostedMemoryHit {
                session: hit.session,
                turn: hit.number,
                score: hit.score,
                text: String::from_utf8_lossy(&text).into_owned(),
            })
        };
        memory.search(&query)?.into_iter().map(view).collect()
    })
    .await
}

/// Uses the memory on a thread that may block.
pub(crate) async fn read<T: Send + 'static>(
    memory: Arc<Memory>,
    work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
) -> Result<T, HostError> {
    let done = tokio::task::spawn_blocking(move || work(&memory)).await;
    let done = done.map_err(HostError::failed)?;
    done.map_err(|error| HostError {
        kind: match error {
            MemoryError::SessionNotFound(_)
            | MemoryError::TurnNotFound { .. }
            | MemoryError::LessonNotFound(_) => HostErrorKind::NotFound,
            MemoryError::InvalidLesson(_)
            | MemoryError::LayerSize { .. }
            | MemoryError::LayerExists(_)
            | MemoryError::GapAccepted(_) => HostErrorKind::Invalid,
            _ => HostErrorKind::Failed,
        },
        message: error.to_string(),
        hint: None,
    })
}
