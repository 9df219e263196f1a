"""The build step that pyproject.toml cannot express: `configs/` travels in the wheel as `rewardlab/configs/`."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies `configs/` into the built package; an editable install reads it where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "rewardlab" / "configs"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(__file__).parent / "configs", target)


setup(cmdclass={"build_py": BuildWithConfigs})
