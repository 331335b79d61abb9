//! `peft-tune mcp`: tools for agents, by the Model Context Protocol (<https://modelcontextprotocol.io>) on standard input and
//! output. Each tool runs a command of this program in a process of its own and hands on what that prints with `--json`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServiceExt};

use super::child::Answer;
use super::confines::Confines;
use super::tools::ToolRow;
use super::{child, tools};
use crate::cli::CliError;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::tell;

/// What an agent is told of the tools together.
const INSTRUCTIONS: &str = "peft-tune finds LoRA and QLoRA fine-tuning settings by short measured trials. Call `plan` before \
    `search` and tell the person how long it will take. A search runs in the background: ask `status` now and then until \
    `running` is false, then `explain`, and `export` the recommended setting. Change no file that a search reads while it \
    runs. Nothing is overwritten or deleted: write exports into a new directory.";

/// Serve tools for agents over standard input and output (Model Context Protocol)
///
/// The tools are plan, search, resume, stop, status, query, explain, export and profile; an agent's program starts this
/// command. Files have to lie below one directory, and nothing is overwritten or deleted.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Directory that study files, results and exports have to lie below; paths are relative to it
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Directory outside of it with models or data that study files may name; can be given again
    #[arg(long, value_name = "DIR")]
    also_read: Vec<PathBuf>,
    /// Run studies, too, whose trials are programs of their own, or that a launcher starts
    #[arg(long)]
    allow_commands: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Serves until the client closes standard input.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let confines = Confines::new(&args.root, &args.also_read, args.allow_commands, &args.database.path())?;
    if std::io::stdin().is_terminal() {
        tell(format_args!(
            "an agent's program starts this command and speaks JSON-RPC with it; Ctrl-C ends it"
        ));
    }
    let server = Server {
        confines: Arc::new(confines),
    };
    block_on(async {
        let running = server.serve(rmcp::transport::stdio()).await;
        let running =
            running.map_err(|error| CliError::failed(anyhow::anyhow!("no client spoke to this server: {error}")))?;
        running.waiting().await.map_err(CliError::failed)?;
        Ok(())
    })
}

/// Answers one client.
struct Server {
    confines: Arc<Confines>,
}

impl Server {
    /// The answer of a tool.
    ///
    /// # Errors
    /// Arguments that it does not have, paths outside of the root, and what its command failed with.
    async fn answer(&self, tool: &'static ToolRow, request: CallToolRequestParams) -> Result<Answer, CliError> {
        let confines = self.confines.clone();
        let arguments = request.arguments.unwrap_or_default();
        // Files and the database are looked at.
        let work = tokio::task::spawn_blocking(move || (tool.work)(arguments, &confines));
        child::answer(work.await.map_err(CliError::failed)??, &self.confines).await
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(tools)
            .with_server_info(Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools: Vec<Tool> = tools::ROWS.iter().map(ToolRow::described).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::ROWS.iter().find(|row| row.name == request.name) else {
            let message = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let answer = tokio::select! {
            answer = self.answer(tool, request) => answer,
            // Its process ends with it; a search in the background goes on.
            () = context.ct.cancelled() => Err(CliError::failed(anyhow::anyhow!("the call was cancelled"))),
        };
        let result = match answer {
            Ok(answer) => answer.into_result(),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.shown())]),
        };
        Ok(result.into())
    }
}
