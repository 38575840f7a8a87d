"""Libraries that start ranks of their own find those that are there: Lightning, Fabric, Accelerate, Transformers."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import NotebookKernel

LIGHTNING = """
import warnings
warnings.filterwarnings("ignore")
import torch, pytorch_lightning as lightning
from torch.utils.data import DataLoader, TensorDataset

class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, number):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

torch.manual_seed(0)
fit = Fit()
before = fit.layer.weight.detach().clone()
data = DataLoader(TensorDataset(torch.ones(64, 8), torch.ones(64, 1)), 4)
"""
TRAINER = """
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2{strategy}, logger=False,
    enable_checkpointing=False, enable_model_summary=False,
)
trainer.fit(fit, data)
seen = torch.tensor([trainer.global_rank, trainer.world_size, trainer.global_step])
"""


@pytest.mark.parametrize("strategy", ["", ", strategy='ddp'"])
def test_lightning_trains_on_the_ranks_that_are_there(kernel: NotebookKernel, strategy: str) -> None:
    kernel.run(LIGHTNING).check()
    cell = TRAINER.format(strategy=strategy)
    run = kernel.run(f"%%distributed --devices 2 --gather seen{cell}").check()
    # 64 samples, of which each rank has half, in batches of 4, twice.
    assert kernel.value("[one.tolist() for one in seen]") == [[0, 2, 16], [1, 2, 16]]
    assert kernel.value("bool((fit.layer.weight != before).all()), type(fit).__name__") == (True, "Fit")
    assert re.search(r"Epoch 1/1: 100%\|██████████\| 8/8 .* loss: 0\.\d+\n", run.stdout)
    assert "`Trainer.fit` stopped: `max_epochs=2` reached." in run.stderr


def test_lightning_that_only_the_ranks_import_trains_too(kernel: NotebookKernel) -> None:
    run = kernel.run(f"%%distributed --devices 2 -o seen\n{LIGHTNING}{TRAINER.format(strategy='')}").check()
    assert kernel.value("seen.tolist()") == [0, 2, 16]
    assert "`Trainer.fit` stopped: `max_epochs=2` reached." in run.stderr


def test_the_notebook_itself_keeps_its_prompt(kernel: NotebookKernel) -> None:
    kernel.run("%%distributed --devices 2\nimport sys\nhas_prompt = hasattr(sys, 'ps1')").check()
    assert kernel.value("has_prompt") is False
    kernel.run("import sys")
    assert kernel.value("hasattr(sys, 'ps1')") is True


def test_fabric_takes_the_ranks_that_are_there(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import torch
        from lightning_fabric import Fabric
        fabric = Fabric(accelerator="cpu", devices=2)
        fabric.launch()
        model, optimizer = fabric.setup(layer := torch.nn.Linear(2, 1), torch.optim.SGD(layer.parameters(), 0.1))
        fabric.backward(model(torch.ones(1, 2) * rank).sum())
        optimizer.step()
        del fabric, model, optimizer, layer
        fabric_ranks = (Fabric(accelerator="cpu", devices=2).world_size, rank)
        fabric_ranks
        """
    ).check()
    assert run.result == {"text/plain": "(2, 0)"}


def test_accelerate_takes_the_ranks_that_are_there(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import torch
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        gathered = accelerator.gather(torch.tensor([rank]))
        of = accelerator.num_processes, gathered.tolist()
        del accelerator, gathered
        of
        """
    ).check()
    assert run.result == {"text/plain": "(2, [0, 1])"}


def test_transformers_trains_on_the_ranks_that_are_there(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import torch
        from transformers import Trainer, TrainingArguments

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
            def forward(self, x, labels):
                return {"loss": ((self.layer(x) - labels) ** 2).mean()}

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, number):
                return {"x": torch.ones(8), "labels": torch.zeros(1)}

        net = Net()
        before = net.layer.weight.detach().clone()
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2 -o net,steps
        arguments = TrainingArguments(
            output_dir="out", per_device_train_batch_size=4, num_train_epochs=2, logging_steps=4, report_to=[],
            use_cpu=True, save_strategy="no", ddp_find_unused_parameters=False,
        )
        trained = Trainer(model=net, args=arguments, train_dataset=Data()).train()
        steps = trained.global_step, arguments.world_size
        """
    ).check()
    assert kernel.value("steps") == (16, 2)
    assert kernel.value("bool((net.layer.weight != before).all())") is True
    # Its table of losses, as in an ordinary cell.
    assert any("Training Loss" in display.get("text/html", "") for display in run.displays)
