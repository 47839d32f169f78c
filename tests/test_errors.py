"""Every error tells its reader what to do, and the shell which kind of reader."""

from llmc import errors


def classes() -> list[type[errors.LlmcError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, errors.LlmcError)
        and value is not errors.LlmcError
    ]


def test_every_class_has_its_own_exit_code() -> None:
    codes = {cls.__name__: cls.exit_code for cls in classes()}
    assert len(set(codes.values())) == len(codes) >= 6
    # 1 is a bug's traceback, 126 and up the shell's own.
    assert all(1 < code < 126 for code in codes.values()), codes


def test_every_class_says_what_to_do() -> None:
    assert all(cls.__doc__ for cls in classes())


def test_unsupported_lists_all_reasons() -> None:
    error = errors.UnsupportedError("cannot", ["first", "second"], hint="try")
    assert error.message == "cannot\n  - first\n  - second"
    assert (error.reasons, error.hint) == (("first", "second"), "try")
