"""The console. Typer and rich are loaded by the call, never by importing this."""


def main() -> None:
    """Run the `tenure` command."""
    import typer

    from tenure import __version__

    app = typer.Typer(add_completion=False, no_args_is_help=True)

    @app.callback(invoke_without_command=True)
    def tenure(*, version: bool = typer.Option(default=False, help="Print the version and exit.")) -> None:
        """Long agent runs that survive the death of their process."""
        if version:
            typer.echo(__version__)

    app()
