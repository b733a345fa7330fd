"""An adversarial pair with an optimizer each, gradients averaged by hand."""

import torch
import torch.distributed as dist
import toy

import rankwatch

rankwatch.init()
toy.start()
makes, judges = torch.nn.Linear(16, 64), toy.model()
optimizers = [torch.optim.Adam(each.parameters()) for each in (makes, judges)]
for step in range(400):
    with rankwatch.step():
        loss = judges(makes(torch.randn(32, 16))).pow(2).mean()
        loss.backward()
        for net, optimizer in zip((makes, judges), optimizers, strict=True):
            toy.average_gradients(net)
            if net is judges or step % 5 == 0:
                optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
